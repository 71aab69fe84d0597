"""Each kind of statement, and the state of a cell, without a child."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from casebook.cases.load import read_case
from casebook.cases.model import Case, Statement
from casebook.cases.run import CellState, judge, stated
from casebook.cases.statements import Answer, Evidence, Plan, ask
from casebook.launch import Launch
from casebook.launch.read import read
from casebook.launch.source import Source
from casebook.resolution.model import (
    Argument,
    Change,
    EnvAccess,
    Failure,
    Frame,
    LogLine,
    Outcome,
    OutcomeKind,
    Verdict,
)
from casebook.resolution.trail import Trail

AT = Frame("srt/server_args.py", 10, "_handle_x", "self.page_size = 1")
STARTS = Outcome(OutcomeKind.STARTS, "It starts.")
REFUSED = Outcome(OutcomeKind.REFUSED, "argparse refuses the words: unrecognized arguments: --x.")
WARNING = LogLine("WARNING", "page size set to 1", AT)


def rejected(message: str) -> Outcome:
    return Outcome(OutcomeKind.REJECTED, message, Failure("ValueError", message, (AT,)))


def trail(outcome: Outcome = STARTS, silent: bool = False) -> Trail:
    change = Change(32, 1, "assign", "parse", (AT,), None, None if silent else WARNING)
    page = Argument(
        "page_size", "--page-size", "--page-size 32", "command line", 32, (change,), 1,
        Verdict.OVERRIDDEN, "",
    )  # fmt: skip
    unset = Argument("seed", "--seed", None, "default", None, (), None, Verdict.DEFAULTED, "")
    return Trail(
        launch=Launch.of("--model-path m"),
        release="0.5.11",
        gpu="g",
        model="m",
        outcome=outcome,
        arguments=() if outcome.kind is OutcomeKind.REFUSED else (page, unset),
        environment=(EnvAccess("SGLANG_X", "read", None, False, AT),),
        log=(WARNING,),
        output="",
    )


def statement(kind: str, **keys: Any) -> Statement:
    return TypeAdapter(Statement).validate_python({"kind": kind, **keys})


def argument(**keys: Any) -> Statement:
    return statement("argument", argument="page_size", **keys)


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        (argument(ends_as=1), True),
        (argument(ends_as=True), False),
        (argument(ends_as=1, verdict=["honoured"]), False),
        (argument(ends_as=1, verdict=["honoured", "overridden"]), True),
        (argument(ends_unlike=32), True),
        (argument(ends_unset=True), False),
        (statement("argument", argument="--seed", ends_unset=True), True),
        (argument(decided_in="_handle_x"), True),
        (argument(decided_in="_handle_y"), False),
        (argument(silent=True), False),
        (statement("argument", argument="no_such", ends_as=1), None),
        (statement("starts"), True),
        (statement("error", begins="x"), False),
        (statement("refused", says="x"), False),
        (statement("log", says="set to 1"), True),
        (statement("log", says="set to 1", absent=True), False),
        (statement("log", says="set to 2", absent=True), True),
        (statement("variable", variable="SGLANG_X", read=True), True),
        (statement("variable", variable="SGLANG_Y", read=True), False),
        (statement("variable", variable="SGLANG_Y", read=False), True),
    ],
)
def test_a_launch_that_starts(asked: Statement, holds: bool | None) -> None:
    assert ask(asked, Evidence(trail())).holds is holds


def test_a_change_without_a_log_line_is_silent() -> None:
    assert ask(argument(silent=True), Evidence(trail(silent=True))).holds is True


@pytest.mark.parametrize(
    ("keys", "holds"),
    [
        ({"begins": "A B.C"}, True),
        ({"begins": "A B. C d"}, True),
        ({"begins": "B.C"}, False),
        ({"begins": "A B.C", "type": "ValueError"}, True),
        ({"begins": "A B.C", "type": "KeyError"}, False),
    ],
)
def test_an_error_by_its_beginning(keys: dict[str, str], holds: bool) -> None:
    # SGLang joins two sentences without a blank, and people quote them with one.
    assert ask(statement("error", **keys), Evidence(trail(rejected("A B.C d")))).holds is holds


def test_a_refusal() -> None:
    evidence = Evidence(trail(REFUSED))
    assert ask(statement("refused", says="arguments: --x"), evidence).holds is True
    assert ask(argument(ends_as=1), evidence).holds is None


def test_a_finding() -> None:
    source = Source("a.sh", "python -m sglang.launch_server --model-path m \\ \n  --page-size 2\n")
    evidence = Evidence(findings=read(source).findings)
    assert ask(statement("finding", rule="blank-after-backslash"), evidence).holds is True
    assert ask(statement("finding", rule="crlf-line-ends"), evidence).holds is False


def test_a_plan_is_asked_only_if_there_is_one() -> None:
    asked = statement("plan", says="out of memory")
    missing = ask(asked, Evidence(plan_missing="memory plan missing."))
    assert missing == Answer(None, "memory plan missing.")
    assert ask(asked, Evidence(plan=Plan(False, "3 GB short."))) == Answer(True, "3 GB short.")
    assert ask(asked, Evidence(plan=Plan(True, "It fits."))).holds is False


def state_of(case: Case, outcome: Outcome = STARTS) -> CellState:
    evidence = Evidence(trail(outcome))
    return judge(case, evidence, [ask(one, evidence) for one in case.fault])[0]


def with_fault(case: Case, *fault: Statement, **keys: Any) -> Case:
    return case.model_copy(update={"fault": fault, **keys})


def test_the_state_of_a_cell(case_file: Path) -> None:
    case = read_case(case_file)
    kept = with_fault(case, argument(ends_as=32))
    assert state_of(case) is CellState.REPRODUCES
    assert state_of(kept) is CellState.MENDED
    # A launch that ends for another reason tells nothing, be the statement true or not.
    assert state_of(case, rejected("another")) is CellState.NOT_APPLICABLE
    assert state_of(kept, rejected("another")) is CellState.NOT_APPLICABLE
    assert state_of(with_fault(case, statement("log", says="x", absent=True)), REFUSED) is (
        CellState.NOT_APPLICABLE
    )


def test_the_state_where_the_end_itself_is_the_fault(case_file: Path) -> None:
    case = with_fault(read_case(case_file), statement("error", begins="known"))
    assert state_of(case, rejected("known error")) is CellState.REPRODUCES
    assert state_of(case, rejected("another")) is CellState.NOT_APPLICABLE
    assert state_of(case) is CellState.MENDED


def test_the_state_where_an_error_is_the_mend(case_file: Path) -> None:
    case = with_fault(read_case(case_file), statement("starts"), mend_rejects=True)
    assert state_of(case) is CellState.REPRODUCES
    assert state_of(case, rejected("not for this model")) is CellState.MENDED
    assert state_of(case, REFUSED) is CellState.NOT_APPLICABLE


@pytest.mark.parametrize(
    ("release", "state"),
    [
        ("0.5.11", CellState.REPRODUCES),
        ("0.5.15.post1", CellState.MENDED),
        ("0.5.12", None),  # the file says nothing of it
        ("0.5.9", CellState.NOT_APPLICABLE),
    ],
)
def test_what_a_file_says_of_a_release(
    case_file: Path, release: str, state: CellState | None
) -> None:
    case = read_case(case_file).model_copy(update={"releases": ">=0.5.10"})
    assert stated(case, release) is state
