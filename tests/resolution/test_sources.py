"""The line of a provider that gave a field its value."""

from __future__ import annotations

from pathlib import Path

import pytest

from casebook.resolution import sources

PROVIDER = """
def provider(view):
    declared: dict = {"first": True}
    if view.wants:
        declared["strategy"] = "extra_buffer"
    else:
        declared["strategy"] = "no_buffer"
        declared["overlap"] = True
    return declared

def other(view):
    declared = {"strategy": "elsewhere"}
    return {
        "page_size": 1,
    }
"""


@pytest.mark.parametrize(
    ("line", "field", "value", "decided"),
    [
        (9, "first", True, 3),
        (9, "strategy", "extra_buffer", 5),
        (9, "strategy", "no_buffer", 7),
        (9, "strategy", "computed", 9),  # not to be told from the text
        (9, "overlap", True, 8),
        (9, "unknown", 1, 9),
        (13, "page_size", 1, 14),
        (13, "strategy", "elsewhere", 13),
    ],
)
def test_the_assignment_and_not_the_return(
    tmp_path: Path, line: int, field: str, value: object, decided: int
) -> None:
    path = tmp_path / "overrides.py"
    path.write_text(PROVIDER, encoding="utf-8")
    assert sources.read(path).declared_at(line, field, value) == decided
