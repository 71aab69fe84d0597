"""Two copies of a script that should be one: which launches differ, and where."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from casebook.launch.analysis import Analysis, LocatedLaunch
from casebook.launch.finding import Finding, Severity, picture


def compare(here: Analysis, there: Analysis) -> list[Finding]:
    """Findings for what the copy ``there`` starts differently; none if both start the same."""
    return list(_differences(here, there))


def _differences(here: Analysis, there: Analysis) -> Iterator[Finding]:
    pairs = list(zip(here.launches, there.launches, strict=False))
    for one, other in pairs:
        lacking = _lacking(one, other)
        extra = _lacking(other, one)
        if not lacking and not extra and dict(one.launch.env) == dict(other.launch.env):
            continue
        start = _offset(here, one, lacking)
        words = " ".join(here.shield.text(w) for w in lacking)
        more = " ".join(there.shield.text(w) for w in extra)
        yield Finding(
            "two-copies-differ",
            Severity.ERROR,
            here.source.place(start),
            f"the copy {there.source.name} starts another launch than {here.source.name}",
            f"what is only here does not run there: {words or '(nothing)'}; only there: {more or '(nothing)'}",
            "copy the script again, and compare checksums (`sha256sum`) before each start",
            picture(here.source, start, start + 1, here.shield),
            tuple(w for w in lacking if w.startswith("--")),
        )
    if len(here.launches) != len(there.launches):
        yield Finding(
            "two-copies-differ",
            Severity.ERROR,
            here.source.place(0),
            f"{here.source.name} starts {len(here.launches)} servers, {there.source.name} {len(there.launches)}",
            "not the same servers run",
            "copy the script again, and compare checksums (`sha256sum`) before each start",
            picture(here.source, 0, 1, here.shield),
        )


def _lacking(one: LocatedLaunch, other: LocatedLaunch) -> list[str]:
    matcher = difflib.SequenceMatcher(
        None, list(one.launch.argv), list(other.launch.argv), autojunk=False
    )
    return [
        w
        for tag, a, b, _, _ in matcher.get_opcodes()
        if tag in ("replace", "delete")
        for w in one.launch.argv[a:b]
    ]


def _offset(here: Analysis, one: LocatedLaunch, lacking: list[str]) -> int:
    for word, place in zip(one.launch.argv, one.places, strict=True):
        if lacking and word == lacking[0] and place is not None:
            return here.source.offset(place.line, place.column)
    return one.server.invocation.start if one.server else 0
