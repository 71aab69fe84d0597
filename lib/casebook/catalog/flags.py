"""Which release knows which flag, and what it sets there (``data/flags.json``).

Written by ``tools/write_flags.py`` from each release's own parser; read to say what to write in place
of a flag that a release does not have.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache

from packaging.version import Version

from casebook.errors import DataError
from casebook.paths import data_dir


@dataclass(frozen=True)
class Span:
    """The releases, first to last, in which a flag sets the argument ``dest``."""

    first: str
    last: str
    dest: str

    def covers(self, release: str) -> bool:
        """Whether ``release`` lies in the span."""
        return Version(self.first) <= Version(release) <= Version(self.last)


@lru_cache(maxsize=1)
def load_flags() -> dict[str, tuple[Span, ...]]:
    """Flag -> its spans, in order. Raises DataError if the file cannot be read."""
    path = data_dir() / "flags.json"
    try:
        table = json.loads(path.read_text("utf-8"))["flags"]
        return {flag: tuple(Span(*span) for span in spans) for flag, spans in table.items()}
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); write it again with tools/write_flags.py."
        ) from error


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
    dests = {last.dest}
    for other, spans in load_flags().items():
        # Another spelling of the same argument, in the last release that had the flag.
        if other != flag and any(s.dest == last.dest and s.covers(last.last) for s in spans):
            dests |= {s.dest for s in spans if s.covers(release)}
    found = [
        other
        for other, spans in load_flags().items()
        if any(s.covers(release) and s.dest in dests for s in spans)
    ]
    return sorted(found, key=len)[:2]
