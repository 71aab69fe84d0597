"""Two or more trails side by side."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from casebook.resolution.model import Argument, short
from casebook.resolution.trail import Trail

ABSENT = "(no such argument)"


def side_by_side(trails: Mapping[str, Trail], only_different: bool = True) -> pd.DataFrame:
    """One row per argument, one column per trail: its final value, or how it came to be.

    ``only_different`` keeps the arguments whose typed words, final value or verdict differ.
    """
    whole = all(trail.arguments for trail in trails.values())  # a refused launch has none
    names = dict.fromkeys(
        a.field
        for trail in trails.values()
        for a in (trail.arguments if whole or not only_different else trail.interesting())
    )
    rows = {}
    for name in names:
        found = [trail.get(name) for trail in trails.values()]
        if only_different and len({_identity(a) for a in found}) == 1:
            continue
        rows[name] = {label: story(a) for label, a in zip(trails, found, strict=True)}
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(trails))
    frame.index.name = "argument"
    return frame


def story(argument: Argument | None) -> str:
    """An argument's way in one line: values with the places where they changed, and the verdict."""
    if argument is None:
        return ABSENT
    steps = [short(argument.parsed, 28)]
    steps += [f"{short(c.new, 28)} [{c.frame or c.kind}]" for c in argument.changes]
    return f"{' → '.join(steps)} ({argument.verdict})"


def _identity(argument: Argument | None) -> tuple[str, ...]:
    if argument is None:
        return (ABSENT,)
    return (repr(argument.typed), repr(argument.final), str(argument.verdict))
