"""Write ``data/options.json``: each release's options, their fields, and whether they take a value.

Asks each release's own parser in its capsule (``--help`` for the shape of an option, a plain launch for
the fields that its destinations become). Usage: ``python tools/write_options.py [RELEASE ...]``.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from casebook import capsule as capsules
from casebook.catalog.flags import HIDDEN
from casebook.catalog.gpus import gpu
from casebook.catalog.releases import releases_table
from casebook.paths import data_dir
from casebook.resolution import pool

_USAGE = re.compile(r"\[?(--?[a-zA-Z][\w.-]*)((?:[^\[\]]|\[[^\[\]]*\])*?)\]?(?=\s+\[-|\s+--|\s*$)")


def ask(release: str) -> dict[str, dict[str, Any]]:
    """Option -> its field, what it takes, and whether it is a deprecated alias, in one release."""
    profile = gpu("B200")
    worker = pool.worker(capsules.ensure(release), profile.as_device(profile.devices_per_node), {})
    here = str(Path.cwd())
    helped = worker.call("resolve", None, argv=["--help"], env={}, cwd=here)
    plain = worker.call("resolve", None, argv=["--model-path", "Qwen/Qwen3-8B"], env={}, cwd=here)
    return shapes(
        helped["command_line"]["flags"], helped["output"], plain["command_line"]["renamed"]
    )


def shapes(
    flags: dict[str, list[str]], text: str, renamed: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """The same from the parser's destinations and the text of its help."""
    usage = text[text.index("usage:") :]
    usage = usage[: re.search(r"\n\s*\n", usage).start()]  # type: ignore[union-attr]
    takes = {m[1]: _takes(" ".join(m[2].split())) for m in _USAGE.finditer(usage)}
    found: dict[str, dict[str, Any]] = {}
    for dest, names in flags.items():
        kinds = {takes[name] for name in names if name in takes}
        for name in names:
            kind = takes.get(name) or (next(iter(kinds)) if len(kinds) == 1 else HIDDEN)
            alias = rf"^  {re.escape(name)}(?![\w-])[^\n]*\n?\s+Deprecated alias for"
            found[name] = {
                "field": renamed.get(dest, dest),
                "takes": kind,
                "alias": re.search(alias, text, re.MULTILINE) is not None,
            }
    return found


def _takes(metavar: str) -> str:
    if not metavar or "|" in metavar:
        return "none"
    return "many" if "..." in metavar else "optional" if metavar.startswith("[") else "one"


def joined(releases: list[str], answers: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """All releases in one table: per option the spans of releases in which it is the same."""
    table: dict[str, list[list[Any]]] = {}
    for number, release in enumerate(releases):
        for name, entry in answers[release].items():
            spans = table.setdefault(name, [])
            value = [entry["field"], entry["takes"], entry["alias"]]
            if spans and spans[-1][2:] == value and spans[-1][1] == releases[number - 1]:
                spans[-1][1] = release
            else:
                spans.append([release, release, *value])
    return {"releases": releases, "options": dict(sorted(table.items()))}


def write(table: dict[str, Any], path: Path) -> None:
    """One option a line, so that a change shows as one."""
    head = f'{{"source": "each release\'s own parser, asked by tools/write_options.py",\n"columns": ["first", "last", "field", "takes", "alias"],\n"releases": {json.dumps(table["releases"])},\n"options": {{\n'
    lines = [f"{json.dumps(n)}: {json.dumps(s)}" for n, s in table["options"].items()]
    path.write_text(head + ",\n".join(lines) + "\n}}\n", "utf-8")


def main() -> None:
    """Ask every release, and write the table."""
    releases = list(releases_table().index)
    answers = {}
    for release in releases:
        answers[release] = ask(release)
        print(release, len(answers[release]), flush=True)
        pool.close_all()
    write(joined(releases, answers), data_dir() / "options.json")


if __name__ == "__main__":
    sys.exit(main())
