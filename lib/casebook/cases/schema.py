"""``python -m casebook.cases.schema`` writes ``data/cases/schema.json`` from the classes of a case."""

from __future__ import annotations

import json

from casebook.cases.model import json_schema
from casebook.paths import data_dir


def text() -> str:
    """The schema as the file has it."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (data_dir() / "cases" / "schema.json").write_text(text(), encoding="utf-8")
