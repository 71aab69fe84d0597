"""A case file that is right, to be made wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

RIGHT = """schema = 1
title = "A typed page size becomes 1"
source = "https://example.org/1"
reported = "0.5.11, B200"
expected = "The page size is used."
happened = "It ends as 1."
cause = "A rule."
mend = "Another flag."
gpu = "B200"
seen_in = "==0.5.11"
mended_in = ">=0.5.14,<=0.5.23"

[launch]
command = "--model-path Qwen/Qwen3.6-27B --page-size 32"

[[fault]]
kind = "argument"
argument = "page_size"
ends_as = 1
verdict = ["overridden"]
"""


@pytest.fixture
def right() -> str:
    return RIGHT


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(RIGHT, encoding="utf-8")
    return path
