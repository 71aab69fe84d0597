"""SGLang's options per release, as ``--help`` of each release's own parser lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from casebook.catalog.flags import HIDDEN, load_options
from casebook.errors import UnknownReleaseError, nearest


@dataclass(frozen=True)
class Option:
    """One option of one release."""

    name: str
    field: str
    takes: str
    """``none`` (a switch), ``one``, ``optional`` or ``many``."""
    alias: bool = False
    """Whether it is a deprecated alias, which is an action of its own in the parser."""


@dataclass(frozen=True)
class Options:
    """What a release's parser accepts."""

    release: str
    by_name: Mapping[str, Option]
    elsewhere: Mapping[str, tuple[str, str]]
    """Options of other releases: the first and the last that has them."""

    def get(self, name: str) -> Option | None:
        """The option of that exact name."""
        return self.by_name.get(name)

    def completions(self, name: str) -> tuple[str, ...]:
        """The options that an abbreviation may stand for."""
        if name in self.by_name or not name.startswith("--") or len(name) < 3:
            return ()
        return tuple(o for o in self.by_name if o.startswith(name))

    def resolve(self, name: str) -> Option | None:
        """The option that argparse takes ``name`` for: itself, or the only one it abbreviates."""
        if found := self.by_name.get(name):
            return found
        fits = self.completions(name)
        return self.by_name[fits[0]] if len(fits) == 1 else None

    def near(self, name: str) -> list[str]:
        """Options that look like ``name``."""
        return nearest(name.replace("_", "-"), self.by_name)


@lru_cache(maxsize=32)
def options(release: str = "0.5.11") -> Options:
    """The options of a release. Raises UnknownReleaseError or DataError."""
    releases, table = load_options()
    if release not in releases:
        raise UnknownReleaseError("SGLang release", release, releases, "See `casebook releases`.")
    number = {name: i for i, name in enumerate(releases)}
    here: dict[str, Option] = {}
    elsewhere: dict[str, tuple[str, str]] = {}
    for name, spans in table.items():
        shown = [span for span in spans if span.takes != HIDDEN]
        for span in shown:
            if number[span.first] <= number[release] <= number[span.last]:
                here[name] = Option(name, span.field, span.takes, span.alias)
        if shown and name not in here:
            elsewhere[name] = (shown[0].first, shown[-1].last)
    return Options(release, here, elsewhere)
