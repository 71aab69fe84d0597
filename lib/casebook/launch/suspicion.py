"""What a rule hands over: a fault with its root offsets, before it is turned into a picture."""

from __future__ import annotations

from dataclasses import dataclass

from casebook.launch.finding import Severity


@dataclass(frozen=True)
class Suspicion:
    """A fault found by a rule."""

    rule: str
    severity: Severity
    start: int
    end: int
    what: str
    effect: str
    mend: str
    flags: tuple[str, ...] = ()


def error(
    rule: str, at: tuple[int, int], what: str, effect: str, mend: str, flags: tuple[str, ...] = ()
) -> Suspicion:
    """A fault that loses something or stops the launch."""
    return Suspicion(rule, Severity.ERROR, at[0], at[1], what, effect, mend, flags)


def warning(
    rule: str, at: tuple[int, int], what: str, effect: str, mend: str, flags: tuple[str, ...] = ()
) -> Suspicion:
    """A fault that may lose something."""
    return Suspicion(rule, Severity.WARNING, at[0], at[1], what, effect, mend, flags)


def note(
    rule: str, at: tuple[int, int], what: str, effect: str, mend: str, flags: tuple[str, ...] = ()
) -> Suspicion:
    """Something worth knowing."""
    return Suspicion(rule, Severity.NOTE, at[0], at[1], what, effect, mend, flags)


def counted(number: int, what: str) -> str:
    """``1 flag``, ``7 flags``."""
    return f"{number} {what}{'' if number == 1 else 's'}"
