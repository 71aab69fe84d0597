"""SGLang's options per release (``data/options.json``), as each release's own parser lists them.

Reading a script must not need a capsule; what a release accepts is therefore kept as data, taken from
``--help`` of the release's own parser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from casebook.errors import DataError, UnknownReleaseError, nearest
from casebook.paths import data_dir


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


@lru_cache(maxsize=1)
def _table() -> tuple[list[str], dict[str, list[tuple[str, str, str, str, bool]]]]:
    path = data_dir() / "options.json"
    try:
        found = json.loads(path.read_text("utf-8"))
        return found["releases"], {n: [tuple(s) for s in v] for n, v in found["options"].items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read ({error}); write it again with tools/write_options.py."
        ) from error


@lru_cache(maxsize=32)
def options(release: str = "0.5.11") -> Options:
    """The options of a release. Raises UnknownReleaseError or DataError."""
    releases, table = _table()
    if release not in releases:
        raise UnknownReleaseError("SGLang release", release, releases, "See `casebook releases`.")
    number = {name: i for i, name in enumerate(releases)}
    here: dict[str, Option] = {}
    elsewhere: dict[str, tuple[str, str]] = {}
    for name, spans in table.items():
        for first, last, field, takes, alias in spans:
            if number[first] <= number[release] <= number[last]:
                here[name] = Option(name, field, takes, alias)
        if name not in here:
            elsewhere[name] = (spans[0][0], spans[-1][1])
    return Options(release, here, elsewhere)
