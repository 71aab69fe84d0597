"""A finding: what is wrong, where, what it does, how to mend it; with a caret picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import pandas as pd

from casebook.launch.shield import Shield
from casebook.launch.source import Place, Source

WIDTH = 110


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Something the script says does not reach the server, or the launch fails."""
    WARNING = "warning"
    """It may not reach the server, or will not in a later release."""
    NOTE = "note"
    """Worth knowing."""


@dataclass(frozen=True)
class Finding:
    """One fault on the way from the script to the server."""

    rule: str
    """Its name, and that of its page under ``docs/findings``."""
    severity: Severity
    place: Place
    what: str
    effect: str
    mend: str
    picture: str
    """The line with carets below, secrets as dots."""
    flags: tuple[str, ...] = ()
    """The arguments that are touched."""

    def __str__(self) -> str:
        lines = [f"{self.place}: {self.severity}: {self.what} [{self.rule}]"]
        lines += self.picture.splitlines()
        lines += [f"  effect: {self.effect}", f"  mend:   {self.mend}"]
        return "\n".join(lines)


def picture(source: Source, start: int, end: int, shield: Shield) -> str:
    """The line of ``start`` with carets under ``start`` to ``end``; long lines are cut around it."""
    place = source.place(start)
    raw = shield.mask(source.line(place.line))
    first = place.column - 1
    last = max(first + 1, min(first + max(end - start, 1), max(len(raw), first + 1)))
    shown = "".join(_visible(c) for c in raw)
    cut = 0
    if len(shown) > WIDTH:
        cut = max(0, min(first - WIDTH // 3, len(shown) - WIDTH))
        shown = (
            ("…" if cut else "")
            + shown[cut : cut + WIDTH]
            + ("…" if cut + WIDTH < len(shown) else "")
        )
        cut -= 1 if cut else 0
    left = f"{place.line:>5} | "
    carets = "^" * max(1, min(last - first, WIDTH - (first - cut)))
    return f"{left}{shown}\n{' ' * (len(left) - 2)}| {' ' * (first - cut)}{carets}"


def _visible(char: str) -> str:
    if char == "\t":
        return " "
    if char == "\r":
        return "␍"
    if char in "\u200b\u200c\u200d\ufeff\u2060":
        return "?"
    return char if char.isprintable() else "?"


def table(findings: Iterable[Finding]) -> pd.DataFrame:
    """One row per finding."""
    columns = ["rule", "severity", "where", "what", "effect", "mend"]
    rows = [(f.rule, str(f.severity), str(f.place), f.what, f.effect, f.mend) for f in findings]
    return pd.DataFrame(rows, columns=columns)
