"""The cache of capsules: find, build once, repair, list and remove.

A capsule appears in the cache by one rename of a finished folder, so a build that is killed leaves
no capsule, only a hidden folder that a later build sweeps. A file lock per capsule makes a second
process wait for the first one's build and then use it. Reading a capsule takes no lock, so a cache
can be shared read-only.

A lock file that changes names another folder, and the capsule of the former lock stays: another
checkout may use it. :func:`installed` tells which ones no lock here asks for, and :func:`prune`
deletes those.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from packaging.version import InvalidVersion, Version

from casebook.capsule.build import build
from casebook.capsule.host import check, this_host
from casebook.capsule.lockfile import Lock, lock_path, read_lock
from casebook.capsule.model import SITE, Capsule, child_python, folder_for, store_dir
from casebook.capsule.progress import Progress, wanted
from casebook.capsule.verify import RECIPE, read_manifest, verify
from casebook.catalog.releases import Release, release
from casebook.errors import CapsuleError

_LOCKS = ".locks"
_UNFINISHED = ".unfinished-"
# `mkdtemp` ends the name of such a folder; what is between is the capsule it was meant for.
_FOR_CAPSULE = re.compile(rf"{re.escape(_UNFINISHED)}(.+)-[^-]+")


def ensure(version: str, *, progress: bool | None = None) -> Capsule:
    """The capsule of release ``version``, built now if the cache has no sound one.

    A build takes some seconds to a minute (it downloads about 300 MB the first time) and shows
    one line of ``progress`` on stderr, by default only where a person is looking.
    """
    found = release(version)
    check(found, this_host())
    lock = read_lock(found.version)
    with _cache_errors(f"the capsule of SGLang {found.version}"):
        folder = folder_for(found.version, lock.sha256)
        capsule = Capsule(found.version, folder / SITE, child_python(), lock.sha256)
        if not verify(capsule):
            return capsule
        with (
            Progress(found.version, lock.count(), wanted(progress)) as line,
            _locked(folder, line),
        ):
            # Another process may have built it while this one waited.
            if verify(capsule):
                _build_into(folder, found, lock, line)
    return capsule


def installed() -> list[dict[str, Any]]:
    """The capsules in the cache, one row each, ready for a DataFrame.

    ``current`` says whether this checkout's lock asks for it, from some Python; :func:`prune`
    deletes the others. ``bytes`` is as installed, and most of it is shared with uv's cache and
    with other capsules.
    """
    rows = []
    for folder in _folders():
        manifest = read_manifest(folder)
        if manifest is None:
            continue
        rows.append(
            {
                "release": manifest.get("release"),
                "platform": folder.name.split("-", 1)[-1].rsplit("-", 1)[0],
                "current": _is_current(manifest),
                "distributions": len(manifest.get("distributions", {})),
                "files": manifest.get("files"),
                "bytes": manifest.get("bytes"),
                "folder": str(folder),
            }
        )
    return sorted(rows, key=lambda row: (_order(row["release"]), row["folder"]))


def remove(version: str) -> int:
    """Delete all capsules of release ``version`` from the cache; returns how many there were."""
    wanted_version = version.strip()
    with contextlib.suppress(InvalidVersion):
        wanted_version = str(Version(wanted_version))
    folders = [f for f in _folders() if f.name.partition("-")[0] == wanted_version]
    if not folders:
        release(version)  # a name that means nothing is a mistake, not an empty answer
    return _remove(folders, f"the capsules of SGLang {wanted_version}")


def prune() -> int:
    """Delete what this checkout has no use for; returns how many capsules that were.

    Those are the capsules of a former lock or recipe, of a release that has no lock here, and
    folders that are no capsule. Remains of killed builds go too.
    """
    folders = [f for f in _folders() if not _is_current(read_manifest(f) or {})]
    count = _remove(folders, "outdated capsules")
    with _cache_errors("outdated capsules"):
        _sweep(store_dir())
    return count


def _remove(folders: list[Path], what: str) -> int:
    with _cache_errors(what):
        for folder in folders:
            with _locked(folder, Progress(folder.name, 0, False)):
                _discard(folder)
    return len(folders)


def _is_current(manifest: dict[str, Any]) -> bool:
    """Whether a capsule with this manifest is what a lock of this checkout asks for."""
    version = str(manifest.get("release"))
    if manifest.get("recipe") != RECIPE or not lock_path(version).is_file():
        return False
    return read_lock(version).sha256 == manifest.get("lock_sha256")


def _order(version: object) -> Version:
    try:
        return Version(str(version))
    except InvalidVersion:
        return Version("0")


def _folders() -> list[Path]:
    with _cache_errors("capsules"):
        store = store_dir()
        if not store.is_dir():
            return []
        return sorted(p for p in store.iterdir() if p.is_dir() and not p.name.startswith("."))


def _build_into(folder: Path, found: Release, lock: Lock, progress: Progress) -> None:
    """Build the capsule whose lock is held, and put it in place of what may be there."""
    _sweep(folder.parent, held=folder.name)
    scratch = _hidden(folder)
    try:
        build(found, lock, this_host(), scratch, progress)
        # mkdtemp makes it private; a shared cache should be readable as its parent is.
        scratch.chmod(folder.parent.stat().st_mode & 0o777)
        if folder.exists():
            _discard(folder)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)  # gone already, if all went well


def _hidden(folder: Path) -> Path:
    """A new empty folder beside ``folder``, under a name that is no capsule's."""
    return Path(tempfile.mkdtemp(prefix=f"{_UNFINISHED}{folder.name}-", dir=folder.parent))


def _discard(folder: Path) -> None:
    """Delete a folder; hidden first, in one step, so that nobody can take half of it."""
    grave = _hidden(folder)
    with contextlib.suppress(FileNotFoundError):
        folder.rename(grave)  # POSIX lets a folder take the place of an empty one
    shutil.rmtree(grave, ignore_errors=True)


def _sweep(store: Path, held: str = "") -> None:
    """Delete hidden folders whose maker is dead: nobody holds the lock of their capsule.

    ``held`` is the capsule whose lock the caller holds.
    """
    for stale in store.glob(f"{_UNFINISHED}*"):
        capsule = _FOR_CAPSULE.fullmatch(stale.name)
        if capsule is None or capsule[1] == held:
            shutil.rmtree(stale, ignore_errors=True)
            continue
        with contextlib.suppress(Timeout), _lock(store / capsule[1]).acquire(timeout=0):
            shutil.rmtree(stale, ignore_errors=True)


def _lock(folder: Path) -> FileLock:
    locks = folder.parent / _LOCKS
    locks.mkdir(parents=True, exist_ok=True)
    return FileLock(locks / f"{folder.name}.lock")


@contextlib.contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    lock = _lock(folder)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress.step("waiting for another process that builds it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _cache_errors(what: str) -> Iterator[None]:
    """Say what it means for ``what`` that the cache cannot be read or written."""
    try:
        yield
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise CapsuleError(
            f"The capsule cache cannot hold {what} ({error.strerror or error}{where}); make room "
            "or make it writable, or set CASEBOOK_CACHE to another folder."
        ) from error
