"""Every kind of evidence has one state and one sentence."""

from __future__ import annotations

import pytest

from casebook.runs.outcome import Evidence, State, batch_exit_code, classify

FAIL = {"state": "FAIL", "headline": "The bytes differ."}
PASS = {"state": "PASS", "headline": "They agree."}


@pytest.mark.parametrize(
    ("seen", "state", "words"),
    [
        (Evidence(0, finished=True), State.OK, ""),
        (Evidence(0, finished=True, verdict=PASS), State.OK, ""),
        (Evidence(0, finished=True, verdict={"state": "INCONCLUSIVE"}), State.OK, ""),
        (Evidence(0, finished=True, verdict=FAIL), State.VERDICT_FAIL, "The bytes differ."),
        (
            Evidence(0, "PapermillExecutionError", "ValueError: no", 4, finished=True),
            State.CELL_ERROR,
            "In [4] raised ValueError: no",
        ),
        (Evidence(0, "SystemExit", cell=2, finished=True), State.CELL_ERROR, "left the notebook"),
        (
            Evidence(0, "CellTimeoutError", cell=3, finished=True, deadline_seconds=60),
            State.TIMEOUT,
            "after 60 s, its limit, in In [3]",
        ),
        (Evidence(None, cell=3, deadline_seconds=60), State.TIMEOUT, "after 60 s"),
        (Evidence(0, "DeadKernelError", cell=1, finished=True), State.KERNEL_DIED, "memory"),
        (Evidence(0, "NoSuchKernel", "In R.", finished=True), State.NO_KERNEL, "In R."),
        (Evidence(0, "RunError", "Unknown x.", finished=True), State.BAD_PARAMETERS, "Unknown x."),
        (Evidence(0, "OSError", "disk full", finished=True), State.LOST, "OSError: disk full"),
        (Evidence(-9, cell=2), State.LOST, "signal 9 in In [2]"),
        (Evidence(1, message="ImportError: x"), State.LOST, "exit code 1 in the first cell: Imp"),
    ],
)
def test_evidence_has_one_state(seen: Evidence, state: State, words: str) -> None:
    found, sentence = classify(seen)
    assert found is state
    assert words in sentence
    assert bool(sentence) == (state is not State.OK)


def test_a_passing_verdict_does_not_excuse_a_later_error() -> None:
    seen = Evidence(0, "PapermillExecutionError", "KeyError: 1", 9, finished=True, verdict=PASS)
    assert classify(seen)[0] is State.CELL_ERROR


def test_terminal_colours_and_line_breaks_leave_the_sentence() -> None:
    seen = Evidence(0, "PapermillExecutionError", "\x1b[31mValueError\x1b[0m: a\n b", 1, True)
    assert classify(seen)[1] == "In [1] raised ValueError: a b"


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([], 0),
        ([State.OK], 0),
        ([State.OK, State.VERDICT_FAIL], 1),
        ([State.TIMEOUT, State.CELL_ERROR], 1),
        ([State.TIMEOUT, State.OK], 3),
        ([State.BAD_PARAMETERS, State.CELL_ERROR], 2),
    ],
)
def test_exit_code_of_a_batch(states: list[State], code: int) -> None:
    assert batch_exit_code(states) == code


def test_every_state_has_words_and_an_exit_code() -> None:
    assert all(state.words and state.exit_code in (0, 1, 2, 3) for state in State)
