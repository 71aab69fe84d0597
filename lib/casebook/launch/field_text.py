"""One argument as bash would pass it, whether that is certain, and what a parameter stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from casebook.launch.source import Text


@dataclass(frozen=True)
class Empty:
    """A variable that was used and had no text."""

    name: str
    at: int
    known: bool
    """Whether the script itself set it to nothing (False: it may come from outside)."""
    quoted: bool


@dataclass(frozen=True)
class FieldText:
    """One argument as bash would pass it."""

    value: Text
    exact: bool = True
    reason: str = ""
    """Why it is not exact."""
    variables: tuple[str, ...] = ()
    """Variables whose values are part of it."""
    quoted: bool = False
    """Whether any part of it was quoted."""

    @property
    def text(self) -> str:
        """Its characters."""
        return self.value.text

    def behind(self, first: int) -> FieldText:
        """What follows its first ``first`` characters: the value of ``NAME=value``."""
        return replace(self, value=self.value.cut(first, len(self.value)))


@dataclass(frozen=True)
class Lookup:
    """What a parameter's name stands for."""

    fields: tuple[FieldText, ...] | None
    """Its values (several for an array), or None if it is unset."""
    certain: bool = True
    reason: str = ""
    known: bool = True
    """Whether the script decides it; False if the surroundings may."""
    array: bool = False


def joined(fields: Sequence[FieldText], by: str = "") -> FieldText:
    """Several pieces as one field."""
    if len(fields) == 1:
        return fields[0]
    inexact = next((f for f in fields if not f.exact), None)
    return FieldText(
        Text.join([f.value for f in fields], by),
        exact=inexact is None,
        reason=inexact.reason if inexact else "",
        variables=tuple(dict.fromkeys(v for f in fields for v in f.variables)),
        quoted=any(f.quoted for f in fields),
    )
