"""Which release knows which flag, what it sets there and what it takes (``data/options.json``).

Reading a script must not need a capsule, nor must saying what to write in place of a flag that a release
does not have; so ``tools/write_options.py`` keeps what each release's own parser accepts as data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from packaging.version import Version

from casebook.errors import DataError
from casebook.paths import data_dir

HIDDEN = "hidden"


@dataclass(frozen=True)
class Span:
    """The releases, first to last, in which a flag sets the argument ``field`` in the same way."""

    first: str
    last: str
    field: str
    takes: str
    """``none`` (a switch), ``one``, ``optional`` or ``many``; ``hidden`` where ``--help`` leaves it out."""
    alias: bool
    """Whether it is a deprecated alias, which is an action of its own in the parser."""

    def covers(self, release: str) -> bool:
        """Whether ``release`` lies in the span."""
        return Version(self.first) <= Version(release) <= Version(self.last)


@lru_cache(maxsize=1)
def load_options() -> tuple[tuple[str, ...], Mapping[str, tuple[Span, ...]]]:
    """The releases, in order, and option -> its spans. Raises DataError if the file cannot be read."""
    path = data_dir() / "options.json"
    try:
        found = json.loads(path.read_text("utf-8"))
        table = {
            name: tuple(Span(*span) for span in spans) for name, spans in found["options"].items()
        }
        return tuple(found["releases"]), table
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); write it again with tools/write_options.py."
        ) from error


@lru_cache(maxsize=1)
def load_flags() -> Mapping[str, tuple[Span, ...]]:
    """The long options of :func:`load_options`, those too that ``--help`` does not show."""
    return {name: spans for name, spans in load_options()[1].items() if name.startswith("--")}


def advice(flag: str, release: str) -> str | None:
    """What to write for ``flag`` in ``release``, in one sentence; None if there is nothing to say.

    A flag that another release knows is followed to the argument it sets there, and to the flags that
    set this argument here, through releases that know both.
    """
    spans = load_flags().get(flag)
    if not spans or any(span.covers(release) for span in spans):
        return None
    if Version(release) < Version(spans[0].first):
        return f"{flag} comes with {spans[0].first}; {release} does not have it yet."
    last = spans[-1]
    successors = _successors(flag, last, release)
    ending = f"SGLang knew {flag} up to {last.last}"
    if successors:
        return f"{ending}; in {release} write {' or '.join(successors)}."
    return f"{ending}; {release} has nothing in its place."


def _successors(flag: str, last: Span, release: str) -> list[str]:
    """The flags of ``release`` for what ``flag`` set last: same argument, or one with the same flags."""
    fields = {last.field}
    for other, spans in load_flags().items():
        # Another spelling of the same argument, in the last release that had the flag.
        if other != flag and any(s.field == last.field and s.covers(last.last) for s in spans):
            fields |= {s.field for s in spans if s.covers(release)}
    found = [
        other
        for other, spans in load_flags().items()
        if any(s.covers(release) and s.field in fields for s in spans)
    ]
    return sorted(found, key=len)[:2]
