"""A lock file as read: the exact distributions of a release's capsule, with their hashes.

Locks are written by ``casebook.capsule.lock``; this module is apart from it so that the writer can
be run with ``python -m``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import InvalidMarker, Marker

from casebook.errors import CapsuleError
from casebook.paths import data_dir

PYTHONS = ((3, 11), (3, 12), (3, 13))
"""CPython versions a lock serves; the first is the one it is resolved for."""

_PINNED = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)==([A-Za-z0-9.!+_-]+)")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """One locked distribution: its normalised name, version, marker ("" for none) and hashes."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    def render(self) -> str:
        """The entry as it stands in the lock."""
        head = f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")
        return " \\\n    ".join([head, *(f"--hash=sha256:{h}" for h in self.hashes)]) + "\n"


@dataclass(frozen=True)
class Lock:
    """A lock as read from its file. ``sha256`` is of the file's text, so it names the contents."""

    path: Path
    sha256: str
    entries: tuple[Entry, ...]

    def render(self, *, only: str | None = None, without: str | None = None) -> str:
        """A requirements file of all entries, of one name alone, or of all but one name."""
        return "".join(
            e.render() for e in self.entries if only in (None, e.name) and e.name != without
        )

    def count(self) -> int:
        """How many distributions are installed on the running platform."""
        return sum(1 for e in self.entries if not e.marker or Marker(e.marker).evaluate())


def lock_path(version: str) -> Path:
    """Where the lock of release ``version`` is kept."""
    return data_dir() / "capsules" / f"{version}.txt"


def read_lock(version: str) -> Lock:
    """The lock of release ``version``."""
    path = lock_path(version)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise CapsuleError(
            f"SGLang {version} has no lock at {path}; write it with "
            f"`python -m casebook.capsule.lock {version}`."
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise CapsuleError(
            f"The lock {path} cannot be read: {error}; restore it from the checkout."
        ) from error
    entries = tuple(parse_lock(text, path))
    if not any(e.name == "sglang" and e.version == version for e in entries):
        raise CapsuleError(
            f"{path} does not lock sglang=={version}; write it again with "
            f"`python -m casebook.capsule.lock {version}`."
        )
    return Lock(path, hashlib.sha256(text.encode()).hexdigest(), entries)


def parse_lock(text: str, path: Path) -> Iterator[Entry]:
    """The entries of a lock's ``text``; ``path`` is for messages."""
    logical = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    for line in logical.replace("\\\n", " ").splitlines():
        if not line.strip():
            continue
        head, *hashes = (part.strip() for part in line.split("--hash=sha256:"))
        requirement, _, marker = head.partition(";")
        pinned = _PINNED.fullmatch(requirement.strip())
        if not pinned or not hashes or not all(map(_HASH.fullmatch, hashes)) or not _fits(marker):
            raise CapsuleError(
                f"{path} holds a line that is not a pinned requirement with hashes "
                f"({line.strip()[:60]!r}); write it again with "
                f"`python -m casebook.capsule.lock {path.stem}`."
            )
        yield Entry(pinned[1], pinned[2], marker.strip(), tuple(hashes))


def _fits(marker: str) -> bool:
    """Whether ``marker`` is empty or an environment marker."""
    if not marker.strip():
        return True
    try:
        Marker(marker)
    except InvalidMarker:
        return False
    return True
