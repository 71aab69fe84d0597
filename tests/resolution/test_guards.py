"""An argument whose value ended the launch is rejected, whether or not the message names it."""

from __future__ import annotations

from pathlib import Path

import pytest

from casebook.resolution import Verdict, trace
from casebook.resolution.guards import guard_of
from casebook.resolution.interpret import Reader
from casebook.resolution.model import Failure, Frame

SOURCE = """
def check(self, cfg):
    if self.outer:
        limit = self.through_a_name
        if self.one > 1 and getattr(self, "two") == limit:
            raise ValueError("not named")
    else:
        assert cfg.three % 2 == 0 and not_a_field.something
    while other(self.four):
        raise ValueError
    raise ValueError("at last")
"""
FIELDS = ("outer", "through_a_name", "one", "two", "three", "four", "unread")


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    (tmp_path / "a.py").write_text(SOURCE, encoding="utf-8")
    return Reader(tmp_path)


@pytest.mark.parametrize(
    ("line", "nearest", "around"),
    [
        (6, {"one", "two", "through_a_name"}, {"outer"}),
        (8, {"three"}, {"outer"}),
        (10, {"four"}, set()),
    ],
)
def test_the_tests_before_a_line(
    reader: Reader, line: int, nearest: set[str], around: set[str]
) -> None:
    failure = Failure("ValueError", "", (Frame("a.py", line, "check"),))
    guard = guard_of(failure, reader, FIELDS)
    assert guard is not None
    assert (guard.nearest, guard.around) == (nearest, around)


def test_a_line_behind_no_test_has_no_guard(reader: Reader) -> None:
    for frame in (Frame("a.py", 11, "check"), Frame("no_such.py", 1, "check")):
        assert guard_of(Failure("ValueError", "", (frame,)), reader, FIELDS) is None
    assert guard_of(Failure("ValueError", "", ()), reader, FIELDS) is None
    assert guard_of(None, reader, FIELDS) is None


@pytest.mark.capsule
def test_an_assert_without_a_message_rejects_what_its_test_reads() -> None:
    trail = trace("--model-path Qwen/Qwen3-8B --tp 3 --dp 2 --enable-dp-attention")
    assert "assert" in trail.outcome.sentence
    for name in ("tp_size", "dp_size", "enable_dp_attention"):
        assert trail[name].verdict is Verdict.REJECTED
        assert "The check at server_args.py:2935" in trail[name].note
    assert trail["model_path"].verdict is Verdict.HONOURED
