"""The SGLang releases the lab knows (``data/releases.toml``), and what their capsules leave out.

The facts are data, so that a new release is a block in a file and not a change of code. A
malformed file is reported as one sentence naming the file and the entry.
"""

from __future__ import annotations

import contextlib
import functools
import tomllib
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from casebook.errors import DataError, UnknownReleaseError
from casebook.paths import data_dir

ADD_HINT = (
    "To add a release, append a [[release]] block to data/releases.toml and run "
    "`python -m casebook.capsule.lock VERSION`; `casebook.catalog.releases.releases_table()` lists "
    "the known ones."
)


def _version(text: str) -> str:
    try:
        return str(Version(text))
    except InvalidVersion as error:
        raise ValueError(f"{text!r} is not a version") from error


def _specifier(text: str) -> str:
    try:
        return str(SpecifierSet(text))
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r} is not a version range") from error


@functools.total_ordering
class Release(BaseModel):
    """One SGLang release on the package index. Releases order as their versions do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Annotated[str, AfterValidator(_version)]
    uploaded: date
    requires_python: Annotated[str, AfterValidator(_specifier)]
    wheel: Literal["any", "manylinux_2_34"]
    pythons: tuple[str, ...] = ()
    exclude_newer: date
    source: str

    @property
    def key(self) -> Version:
        """What releases are ordered by."""
        return Version(self.version)

    def __lt__(self, other: object) -> bool:
        return self.key < other.key if isinstance(other, Release) else NotImplemented

    def supports(self, python: tuple[int, int]) -> bool:
        """Whether this release can be installed for CPython ``python``, as (major, minor)."""
        name = f"{python[0]}.{python[1]}"
        in_range = SpecifierSet(self.requires_python).contains(name)
        return in_range and (self.wheel == "any" or name in self.pythons)


class Dropped(BaseModel):
    """A distribution no capsule holds, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, AfterValidator(canonicalize_name)]
    reason: str


def _read(path: Path, table: str) -> dict[str, Any]:
    """The TOML document at ``path``, checked to be of schema 1 and to hold an array ``table``."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(
            f"{path} does not exist; restore it from the checkout, or set CASEBOOK_DATA to the "
            "folder that holds it."
        ) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} cannot be read as TOML: {error}; correct the file.") from error
    if document.get("schema") != 1:
        raise DataError(f"{path} must say `schema = 1`, not {document.get('schema')!r}.")
    entries = document.get(table)
    rows = entries if isinstance(entries, list) else []
    if not rows or not all(isinstance(entry, dict) for entry in rows):
        raise DataError(f"{path} must hold [[{table}]] blocks; add at least one.")
    return document


def _say(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(map(str, item['loc'])) or 'entry'}: {item['msg']}" for item in error.errors()
    )


@functools.lru_cache(maxsize=8)
def _load_releases(path: Path, _stamp: int) -> Mapping[str, Release]:
    document = _read(path, "release")
    source = document.get("source", "")
    releases: dict[str, Release] = {}
    for number, entry in enumerate(document["release"], start=1):
        where = f"{path}, [[release]] number {number} ({entry.get('version', 'without a version')})"
        try:
            found = Release.model_validate({"source": source, **entry})
        except ValidationError as error:
            raise DataError(f"{where} is malformed: {_say(error)}; correct the entry.") from error
        if found.version in releases:
            raise DataError(f"{where} repeats a version; remove one of the two.")
        if found.exclude_newer <= found.uploaded:
            raise DataError(f"{where} has exclude_newer not after uploaded; choose a later day.")
        if (found.wheel == "any") != (not found.pythons):
            raise DataError(
                f'{where} must list pythons if, and only if, wheel is not "any"; correct the entry.'
            )
        releases[found.version] = found
    return {r.version: r for r in sorted(releases.values())}


def load_releases() -> Mapping[str, Release]:
    """All known releases by version, oldest first."""
    path = data_dir() / "releases.toml"
    # The modification time is part of the cache key, so that a notebook sees an edited file.
    stamp = path.stat().st_mtime_ns if path.exists() else 0
    return _load_releases(path, stamp)


def release(version: str) -> Release:
    """The release called ``version`` (a leading ``v`` is ignored)."""
    known = load_releases()
    wanted = version.strip()
    with contextlib.suppress(InvalidVersion):
        wanted = str(Version(wanted))
    if wanted not in known:
        raise UnknownReleaseError("SGLang release", version, known, ADD_HINT)
    return known[wanted]


def releases_table() -> pd.DataFrame:
    """The known releases as a table, oldest first."""
    rows = [
        {
            "release": r.version,
            "uploaded": r.uploaded,
            "python": r.requires_python,
            "wheel": r.wheel,
            "dependencies as of": r.exclude_newer,
        }
        for r in load_releases().values()
    ]
    return pd.DataFrame(rows).set_index("release")


def load_dropped() -> tuple[Dropped, ...]:
    """The distributions left out of every capsule, with a reason each."""
    path = data_dir() / "capsules" / "dropped.toml"
    found: dict[str, Dropped] = {}
    for number, entry in enumerate(_read(path, "dropped")["dropped"], start=1):
        where = f"{path}, [[dropped]] number {number}"
        names = entry.get("names")
        if not isinstance(names, list) or not names or set(entry) != {"names", "reason"}:
            raise DataError(f"{where} must have a list `names` and a `reason`; correct the entry.")
        for name in names:
            try:
                dropped = Dropped(name=name, reason=entry["reason"])
            except ValidationError as error:
                raise DataError(
                    f"{where} is malformed: {_say(error)}; correct the entry."
                ) from error
            if dropped.name in found:
                raise DataError(f"{where} repeats {dropped.name}; remove one of the two.")
            found[dropped.name] = dropped
    return tuple(found.values())
