"""The words of generated scripts against those that real bash passes: equal, wherever they are called exact."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from scripts_from_hypothesis import run, script

from casebook.launch.shell_state import state_for
from casebook.launch.source import Source
from casebook.launch.walk import walk

SCRIPTS = 2450  # so that more than 2,000 of them are called exact


def test_words_are_those_that_bash_passes(tmp_path: Path) -> None:
    counts = {"exact": 0, "left to bash": 0, "refused by bash": 0}

    @settings(
        max_examples=SCRIPTS,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(script)
    def compare(text: str) -> None:
        wanted = run(text, tmp_path)
        if wanted is None:
            counts["refused by bash"] += 1
            return
        reading = walk(Source("t", text).whole(), state_for({"HOME": "/home/user"}, "", []))
        if not reading.exact:
            counts["left to bash"] += 1
            return
        counts["exact"] += 1
        got = [[w.text for w in i.words[1:]] for i in reading.invocations if i.name == "rec"]
        # `printf '%s\0'` prints one empty text when it is given none.
        assert [c or [""] for c in got] == [c or [""] for c in wanted], text

    compare()
    assert counts["exact"] >= 2000, counts
