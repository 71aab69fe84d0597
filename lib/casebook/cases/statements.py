"""Does a statement of a case hold? Pure: asked of a trail, of findings and of a memory plan."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from casebook.cases.model import (
    ArgumentStatement,
    ErrorStatement,
    FindingStatement,
    LogStatement,
    PlanStatement,
    RefusedStatement,
    StartsStatement,
    Statement,
    VariableStatement,
)
from casebook.launch.finding import Finding
from casebook.resolution.model import Argument, OutcomeKind, same, short
from casebook.resolution.trail import Trail


@dataclass(frozen=True)
class Plan:
    """What a memory plan says of a launch: whether it fits (None: not to be told), in one sentence."""

    fits: bool | None
    sentence: str


@dataclass(frozen=True)
class Evidence:
    """What was found out about a launch on one release; None where it was not asked for."""

    trail: Trail | None = None
    findings: tuple[Finding, ...] = ()
    plan: Plan | None = None
    plan_missing: str = ""
    """Why there is no plan."""


@dataclass(frozen=True)
class Answer:
    """Whether a statement holds (None: it cannot be asked), in one sentence."""

    holds: bool | None
    sentence: str


def needs_trail(statement: Statement) -> bool:
    """Whether the launch must be resolved to answer it."""
    return not isinstance(statement, FindingStatement | PlanStatement)


def of_the_end(statement: Statement) -> bool:
    """Whether it says how a launch ends that does not start."""
    return isinstance(statement, ErrorStatement | RefusedStatement)


@singledispatch
def ask(statement: Any, _evidence: Evidence) -> Answer:
    """Whether ``statement`` holds by ``evidence``."""
    raise TypeError(f"no way to ask {type(statement).__name__}")


@ask.register
def _argument(statement: ArgumentStatement, evidence: Evidence) -> Answer:
    trail = _trail(evidence)
    if trail.outcome.kind is OutcomeKind.REFUSED:
        return Answer(None, trail.outcome.sentence)
    argument = trail.get(statement.argument)
    if argument is None:
        return Answer(None, f"SGLang {trail.release} has no argument {statement.argument}.")
    checks = list(_argument_checks(statement, argument))
    sentence = (
        f"{argument.field} ends as {short(argument.final)}, {argument.verdict}"
        f"{f', at {argument.where}' if argument.where else ''}."
    )
    return Answer(all(checks), sentence)


def _argument_checks(statement: ArgumentStatement, argument: Argument) -> list[bool]:
    checks = []
    if statement.ends_as is not None:
        checks.append(same(argument.final, statement.ends_as))
    if statement.ends_unlike is not None:
        checks.append(not same(argument.final, statement.ends_unlike))
    if statement.ends_unset:
        checks.append(argument.final is None)
    if statement.verdict:
        checks.append(argument.verdict in statement.verdict)
    if statement.decided_in:
        checks.append(statement.decided_in in argument.where)
    if statement.silent:
        checks.append(not argument.message)
    return checks


@ask.register
def _error(statement: ErrorStatement, evidence: Evidence) -> Answer:
    outcome = _trail(evidence).outcome
    failure = outcome.failure
    if failure is None:
        return Answer(False, outcome.sentence)
    begins = failure.begins(statement.begins)
    return Answer(begins and statement.type in ("", failure.type), outcome.sentence)


@ask.register
def _refused(statement: RefusedStatement, evidence: Evidence) -> Answer:
    outcome = _trail(evidence).outcome
    refused = outcome.kind is OutcomeKind.REFUSED and statement.says in outcome.sentence
    return Answer(refused, outcome.sentence)


@ask.register
def _starts(_: StartsStatement, evidence: Evidence) -> Answer:
    outcome = _trail(evidence).outcome
    return Answer(outcome.starts, outcome.sentence)


@ask.register
def _finding(statement: FindingStatement, evidence: Evidence) -> Answer:
    found = next((f for f in evidence.findings if f.rule == statement.rule), None)
    if found is None:
        return Answer(False, f"No {statement.rule} is found.")
    return Answer(True, f"{found.place}: {found.what} [{found.rule}].")


@ask.register
def _log(statement: LogStatement, evidence: Evidence) -> Answer:
    trail = _trail(evidence)
    line = next((x.message for x in trail.log if statement.says in x.message), None)
    if line is None:
        return Answer(statement.absent, f"No log line says {statement.says!r}.")
    return Answer(not statement.absent, f"The log says {short(line.strip(), 160)!r}.")


@ask.register
def _variable(statement: VariableStatement, evidence: Evidence) -> Answer:
    trail, name = _trail(evidence), statement.variable
    read = next((e for e in trail.environment if (e.name, e.operation) == (name, "read")), None)
    if read is None:
        return Answer(not statement.read, f"SGLang {trail.release} does not read {name}.")
    return Answer(statement.read, f"{name} is read at {read.frame.where}.")


@ask.register
def _plan(_: PlanStatement, evidence: Evidence) -> Answer:
    if evidence.plan is None:
        return Answer(None, evidence.plan_missing)
    fits = evidence.plan.fits
    return Answer(None if fits is None else not fits, evidence.plan.sentence)


def _trail(evidence: Evidence) -> Trail:
    if evidence.trail is None:
        raise ValueError("a statement on the resolved launch was asked without a trail")
    return evidence.trail
