"""Run a case on a release: what its launch does there, and whether that is the known fault."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from packaging.specifiers import SpecifierSet

from casebook.cases import statements
from casebook.cases.launches import prepare
from casebook.cases.model import ArgumentStatement, Case, PlanStatement
from casebook.cases.plans import planned
from casebook.cases.statements import Answer, Evidence, Plan
from casebook.errors import CasebookError, CaseError, LaunchError
from casebook.launch import Launch
from casebook.resolution.model import OutcomeKind, Verdict
from casebook.resolution.trace import trace

PLAN_MISSING = "memory plan missing"


_WORTH_TELLING = (
    Verdict.REJECTED,
    Verdict.OVERRIDDEN_SILENTLY,
    Verdict.OVERRIDDEN,
    Verdict.LOST,
)


class CellState(StrEnum):
    """What a case's launch does on one release."""

    REPRODUCES = "reproduces"
    """All of the fault holds."""
    MENDED = "mended"
    """The launch answers, and not all of the fault holds."""
    NOT_APPLICABLE = "not applicable"
    """The release cannot be asked this: it lacks the words, or the launch ends for another reason."""


class Planner(Protocol):
    """Makes the memory plan of a launch, or None where there is none; injected by a test."""

    def __call__(
        self, launch: Launch, *, release: str, gpu: str, model: str | None
    ) -> Plan | None: ...


@dataclass(frozen=True)
class Cell:
    """One case on one release."""

    case: Case
    release: str
    state: CellState
    detail: str
    """Why, in a sentence or two."""
    trail: str
    """What the state rests on, for reading: outcome, the arguments' stories, the findings."""
    asked: bool = True
    """False where a part of casebook that the case needs is missing."""

    @property
    def stated(self) -> CellState | None:
        """What the case's file says of this release, if anything."""
        return stated(self.case, self.release)

    @property
    def as_stated(self) -> bool:
        """Whether SGLang's own code agrees with what the file says."""
        return not self.asked or self.stated in (None, self.state)


def stated(case: Case, release: str) -> CellState | None:
    """The state that a case's file gives for a release; None where it gives none."""
    if not _in(case.releases, release):
        return CellState.NOT_APPLICABLE
    if _in(case.seen_in, release):
        return CellState.REPRODUCES
    if case.mended_in is not None and _in(case.mended_in, release):
        return CellState.MENDED
    return None


def run_case(case: Case, release: str, *, planner: Planner | None = planned) -> Cell:
    """One case on one release."""
    if not _in(case.releases, release):
        said = f"The case speaks of releases {case.releases} alone."
        return Cell(case, release, CellState.NOT_APPLICABLE, said, "")
    with tempfile.TemporaryDirectory(prefix="casebook-case-") as folder:
        try:
            return _asked(case, release, Path(folder) / "config.yaml", planner)
        except CasebookError as error:
            raise CaseError(
                f"The case {case.name} cannot be asked on {release}: {error}"
            ) from error


def _asked(case: Case, release: str, config: Path, planner: Planner | None) -> Cell:
    if case.launch.config is not None:
        config.write_text(case.launch.config, encoding="utf-8")
    evidence = gather(case, release, config, planner)
    answers = [statements.ask(one, evidence) for one in case.fault]
    state, detail = judge(case, evidence, answers)
    story = "\n".join(_story(case, evidence, answers))
    asked = evidence.plan is not None or not _needs_plan(case)
    return Cell(case, release, state, _named(detail, config), _named(story, config), asked)


def gather(case: Case, release: str, config: Path, planner: Planner | None = None) -> Evidence:
    """What the case's statements need to know of its launch on ``release``."""
    found = prepare(case, release, config)
    launch, trail = found.launch, None
    if any(map(statements.needs_trail, case.fault)):
        if launch is None:
            raise LaunchError("its script starts no SGLang server.")
        trail = trace(
            launch, release=release, gpu=case.gpu, model=case.model, intended=found.intended
        )
    plan, missing = None, f"{PLAN_MISSING}."
    if planner and launch is not None and _needs_plan(case):
        plan = planner(launch, release=release, gpu=case.gpu, model=case.model)
    return Evidence(trail, found.findings, plan, missing)


def judge(case: Case, evidence: Evidence, answers: Sequence[Answer]) -> tuple[CellState, str]:
    """The state of a cell, and why.

    A fault that does not speak of the launch's end presumes that the launch starts: one that ends for
    another reason tells nothing of it.
    """
    said = " ".join(dict.fromkeys(a.sentence for a in answers if a.holds is not None))
    outcome = evidence.trail.outcome if evidence.trail else None
    ended = outcome is not None and not outcome.starts
    if all(a.holds for a in answers) and (not ended or any(map(statements.of_the_end, case.fault))):
        return CellState.REPRODUCES, said
    if outcome is not None and outcome.kind is OutcomeKind.REFUSED:
        return CellState.NOT_APPLICABLE, outcome.sentence
    if outcome is not None and ended and not case.mend_rejects:
        reason = f"The launch ends for another reason: {outcome.sentence}"
        return CellState.NOT_APPLICABLE, reason
    unasked = list(dict.fromkeys(a.sentence for a in answers if a.holds is None))
    if unasked:
        return CellState.NOT_APPLICABLE, " ".join(unasked)
    return CellState.MENDED, said


def _story(case: Case, evidence: Evidence, answers: Sequence[Answer]) -> Iterator[str]:
    for answer in answers:
        word = {True: "holds", False: "does not hold", None: "cannot be asked"}[answer.holds]
        yield f"{word}: {answer.sentence}"
    trail = evidence.trail
    if trail is not None:
        yield ""
        yield str(trail)
        asked = [s.argument for s in case.fault if isinstance(s, ArgumentStatement)]
        worth = [a.field for a in trail.interesting() if a.verdict in _WORTH_TELLING]
        stories = {trail[n].field: trail.why(n) for n in (*asked, *worth) if n in trail}
        yield from map(str, stories.values())
        yield from (f"Note: {note}" for note in trail.notes)
    for finding in evidence.findings:
        yield ""
        yield str(finding)


def _needs_plan(case: Case) -> bool:
    return any(isinstance(statement, PlanStatement) for statement in case.fault)


def _in(releases: str, release: str) -> bool:
    return SpecifierSet(releases).contains(release, prereleases=True)


def _named(text: str, config: Path) -> str:
    return text.replace(str(config), config.name)
