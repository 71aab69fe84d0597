"""Search in source: by text, by syntax, by the message that was seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from casebook.capsule import Capsule
from casebook.resolution import search

SOURCE = """\
class ServerArgs:
    page_size: int = 1

    def _check(self, arch):
        if self.page_size > 1:
            if self.fast:
                raise ValueError(
                    f"Paging for {arch} is not possible with --page-size {self.page_size}."
                    "Use --page-size 1."
                )
        assert self.page_size, "page size must be set, and to a good value at that"
        self.page_size = 1
        declare(self, "x", page_size=2)
        return {"page_size": 3}
"""


@pytest.fixture
def capsule(tmp_path: Path) -> Capsule:
    path = tmp_path / "sglang" / "srt"
    path.mkdir(parents=True)
    (path / "server_args.py").write_text(SOURCE)
    return Capsule("0.0", tmp_path, Path("python"), "")


@pytest.mark.parametrize(
    "message",
    [
        "Paging for FooModel is not possible with --page-size 32.Use --page-size 1.",
        "Paging for FooModel is not possible with --page-size 32. Use --page-size 1.",
        "Paging for FooModel is not possible with --page-size 32.",
        "Paging for FooModel is not possible",
    ],
)
def test_a_raise_is_found_by_its_message_whole_or_in_part(capsule: Capsule, message: str) -> None:
    (found,) = search.raises(capsule, message)
    assert (found.frame.line, found.frame.function) == (7, "_check")
    assert found.condition == "self.fast"


@pytest.mark.parametrize("message", ["Paging", "Something else that is long enough to count", ""])
def test_other_messages_find_nothing(capsule: Capsule, message: str) -> None:
    assert search.raises(capsule, message) == []


def test_an_assert_counts(capsule: Capsule) -> None:
    (found,) = search.raises(capsule, "page size must be set, and to a good value at that")
    assert found.frame.line == 11


def test_writes_are_assignments_keywords_and_dictionary_keys(capsule: Capsule) -> None:
    assert list(search.writes(capsule, "page_size")["line"]) == [12, 13, 14]


def test_grep_names_the_function(capsule: Capsule) -> None:
    hits = search.grep(capsule, r"page_size > 1")
    assert hits.to_dict("records") == [
        {
            "file": "srt/server_args.py",
            "line": 5,
            "function": "ServerArgs._check",
            "text": "if self.page_size > 1:",
        }
    ]


def test_an_excerpt_marks_its_line(capsule: Capsule) -> None:
    (found,) = search.raises(capsule, "page size must be set, and to a good value at that")
    lines = search.excerpt(capsule, found.frame, 1, 1).splitlines()
    assert [line[0] for line in lines] == [" ", "→", " "]


def test_a_release_without_the_folder_has_no_files_there(capsule: Capsule) -> None:
    assert list(search.files(capsule, ("srt/arg_groups",))) == []
