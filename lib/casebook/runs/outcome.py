"""How a run ended: a closed list of states, the evidence they are judged by, and the result.

Three kinds of ending, in the order of who must act:

* the notebook ran to its end (``ok``), or its own check said FAIL (``verdict_fail``);
* a cell raised (``cell_error``): the notebook, the code it calls or its input is at fault;
* the surroundings stopped it: ``timeout``, ``kernel_died``, ``no_kernel``, ``lost``; or it was
  never started, because it was asked for wrongly (``bad_parameters``).

The executed notebook is no evidence. After a dead kernel or a timeout, papermill marks all its cells
completed; only the exception that the run raised tells, so that is what the child process reports.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from casebook.runs.spec import RunSpec

RECORD_FORMAT = 2
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class State(StrEnum):
    """All the ways a run can end."""

    OK = "ok"
    VERDICT_FAIL = "verdict_fail"
    CELL_ERROR = "cell_error"
    TIMEOUT = "timeout"
    KERNEL_DIED = "kernel_died"
    NO_KERNEL = "no_kernel"
    BAD_PARAMETERS = "bad_parameters"
    LOST = "lost"

    @property
    def words(self) -> str:
        """The state as a reader of the index sees it."""
        return _WORDS[self]

    @property
    def exit_code(self) -> int:
        """What a run in this state makes of the whole batch's exit code."""
        return _EXIT[self]

    @property
    def came_to_its_end(self) -> bool:
        """The notebook ran to its last cell; the same run again would say the same."""
        return self in (State.OK, State.VERDICT_FAIL)

    @property
    def worth_a_retry(self) -> bool:
        """The surroundings failed in a way that may pass; a limit or a missing kernel does not."""
        return self in (State.KERNEL_DIED, State.LOST)


_WORDS = {
    State.OK: "ran to its end",
    State.VERDICT_FAIL: "its check failed",
    State.CELL_ERROR: "a cell raised an error",
    State.TIMEOUT: "ran out of time",
    State.KERNEL_DIED: "its kernel died",
    State.NO_KERNEL: "no kernel for it",
    State.BAD_PARAMETERS: "refused: bad parameters",
    State.LOST: "its process was lost",
}
_EXIT = {
    State.OK: 0,
    State.VERDICT_FAIL: 1,
    State.CELL_ERROR: 1,
    State.BAD_PARAMETERS: 2,
    State.TIMEOUT: 3,
    State.KERNEL_DIED: 3,
    State.NO_KERNEL: 3,
    State.LOST: 3,
}


@dataclass(frozen=True)
class Evidence:
    """What was seen of one run, by its process and from outside."""

    exit_code: int | None = None
    """Of the process that ran the notebook; None if it was killed at its deadline."""
    error: str = ""
    """Class name of the exception that ended the run; empty if none was reported."""
    message: str = ""
    cell: int | None = None
    """The number n of ``In [n]`` that was running last."""
    finished: bool = False
    """The process reported the end of the run, good or bad."""
    verdict: dict[str, Any] | None = None
    deadline_seconds: float = 0.0


@dataclass(frozen=True)
class RunResult:
    """One run's outcome: what its record holds, and what the index shows."""

    spec: RunSpec
    state: State
    seconds: float = 0.0
    error: str = ""
    """One sentence; empty if the state is ok."""
    cell: int | None = None
    verdict: dict[str, Any] | None = None
    output: Path | None = None
    """The executed notebook, as far as it got."""
    started: str = ""
    """UTC, ISO 8601."""
    attempts: int = 1
    """How often it was started; more than 1 after an infrastructure fault."""
    reused: bool = False
    """Taken from a record of an earlier batch instead of run again."""

    def to_json(self) -> dict[str, Any]:
        """The record, as plain data."""
        return {
            "format": RECORD_FORMAT,
            "key": self.spec.key,
            "slug": self.spec.slug,
            "name": self.spec.label,
            "title": self.spec.title,
            "notebook": self.spec.notebook_text,
            "parameters": self.spec.parameters,
            "state": self.state.value,
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "cell": self.cell,
            "verdict": self.verdict,
            "output": self.output.name if self.output else None,
            "started": self.started,
            "attempts": self.attempts,
        }

    @classmethod
    def from_json(cls, spec: RunSpec, record: Any, notebooks: Path) -> RunResult | None:
        """The result that ``record`` holds for ``spec``; None if it is not a sound record of it."""
        try:
            if (record["format"], record["key"]) != (RECORD_FORMAT, spec.key):
                return None
            return cls(
                spec,
                State(record["state"]),
                float(record["seconds"]),
                str(record["error"]),
                record["cell"],
                record["verdict"],
                notebooks / record["output"] if record["output"] else None,
                str(record["started"]),
                int(record["attempts"]),
                reused=True,
            )
        except (KeyError, TypeError, ValueError):
            return None

    def at(self, **changes: Any) -> RunResult:
        """A copy with some fields changed."""
        return replace(self, **changes)


def classify(seen: Evidence) -> tuple[State, str]:
    """The state that the evidence means, and one sentence for it (empty if ok)."""
    where = f"In [{seen.cell}]" if seen.cell else "the first cell"
    message = " ".join(_ANSI.sub("", seen.message).split())[:500]
    if not seen.finished:
        if seen.exit_code is None:
            limit = f"{seen.deadline_seconds:g} s"
            return State.TIMEOUT, f"It was stopped after {limit}, its limit, in {where}."
        how = f"signal {-seen.exit_code}" if seen.exit_code < 0 else f"exit code {seen.exit_code}"
        return State.LOST, f"The process that ran it ended with {how} in {where}: {message}".rstrip(
            ": "
        )
    match seen.error:
        case "":
            if seen.verdict and seen.verdict.get("state") == "FAIL":
                return State.VERDICT_FAIL, str(seen.verdict.get("headline") or "Its check failed.")
            return State.OK, ""
        case "RunError":
            return State.BAD_PARAMETERS, message
        case "CellTimeoutError":
            return (
                State.TIMEOUT,
                f"It was stopped after {seen.deadline_seconds:g} s, its limit, in {where}.",
            )
        case "DeadKernelError":
            return (
                State.KERNEL_DIED,
                f"The kernel died in {where}; the usual cause is that memory ran out.",
            )
        case "NoSuchKernel":
            return State.NO_KERNEL, message
        case "PapermillExecutionError":
            return State.CELL_ERROR, f"{where} raised {message}"
        case "SystemExit":
            return State.CELL_ERROR, f"{where} left the notebook early, so later cells did not run."
    return State.LOST, f"The process that ran it failed with {seen.error}: {message}"


def batch_exit_code(states: list[State]) -> int:
    """0 all ok; 2 something was asked for wrongly; 1 a notebook failed; 3 only surroundings did.

    A failed notebook outweighs a lost one: running again may mend the second, not the first.
    """
    codes = {state.exit_code for state in states}
    return next((code for code in (2, 1, 3) if code in codes), 0)
