"""What a check is: a name, a reason, where the failure was seen, and a function that looks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from casebook.dflash.bench import Bench, Given


class State(StrEnum):
    """What a check can say."""

    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    """One check's answer, with the figure or the names it rests on."""

    state: State
    detail: str
    figures: Mapping[str, float] = field(default_factory=dict)
    """Numbers behind the detail that a table or picture wants, by name with unit."""


def passed(detail: str = "") -> Finding:
    """All is well."""
    return Finding(State.PASS, detail)


def failed(detail: str) -> Finding:
    """Something is wrong: what, in half a sentence."""
    return Finding(State.FAIL, detail)


def skipped(why: str) -> Finding:
    """The check has nothing to look at here."""
    return Finding(State.NOT_APPLICABLE, why)


def verdict(ok: bool, detail: str, **figures: float) -> Finding:
    """Pass or fail, with the same evidence."""
    return Finding(State.PASS if ok else State.FAIL, detail, figures)


@dataclass(frozen=True)
class Check:
    """One of the 32. ``bench`` looks at a pipeline, ``files`` at a drafter on disk."""

    number: int
    name: str
    why: str
    """What goes wrong when it is not so."""
    source: str
    """The issue or file where that was seen."""
    bench: Callable[[Bench], Finding] | None = None
    files: Callable[[Given], Finding] | None = None


REGISTRY: dict[int, Check] = {}


def on_bench(
    number: int, name: str, why: str, source: str
) -> Callable[[Callable[[Bench], Finding]], Callable[[Bench], Finding]]:
    """Register a function of a bench as check ``number``."""

    def register(function: Callable[[Bench], Finding]) -> Callable[[Bench], Finding]:
        _register(Check(number, name, why, source, bench=function))
        return function

    return register


def on_files(
    number: int, name: str, why: str, source: str
) -> Callable[[Callable[[Given], Finding]], Callable[[Given], Finding]]:
    """Register a function of a drafter's files as check ``number``."""

    def register(function: Callable[[Given], Finding]) -> Callable[[Given], Finding]:
        _register(Check(number, name, why, source, files=function))
        return function

    return register


def _register(check: Check) -> None:
    known = REGISTRY.get(check.number)
    if known is None:
        REGISTRY[check.number] = check
    elif known.name == check.name and (known.bench is None) != (check.bench is None):
        REGISTRY[check.number] = replace(
            known, bench=known.bench or check.bench, files=known.files or check.files
        )
    else:
        raise ValueError(f"Check {check.number} is there twice.")
