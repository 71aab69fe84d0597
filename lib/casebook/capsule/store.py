"""The cache of capsules: find, build once, repair, list and remove.

A capsule appears in the cache by one rename of a finished folder, so a build that is killed leaves
no capsule, only a hidden folder that the next build sweeps. A file lock per capsule makes a second
process wait for the first one's build and then use it. Reading a capsule takes no lock, so a cache
can be shared read-only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from casebook.capsule.build import build
from casebook.capsule.host import check, this_host
from casebook.capsule.lockfile import Lock, read_lock
from casebook.capsule.model import SITE, Capsule, child_python, folder_for, store_dir
from casebook.capsule.progress import Progress, wanted
from casebook.capsule.verify import read_manifest, verify
from casebook.catalog.releases import Release, release
from casebook.errors import CapsuleError

_UNFINISHED = ".unfinished-"


def ensure(version: str, *, progress: bool | None = None) -> Capsule:
    """The capsule of release ``version``, built now if the cache has no sound one.

    A build takes some seconds to a minute (it downloads about 300 MB the first time) and shows
    one line of ``progress`` on stderr, by default only where a person is looking.
    """
    found = release(version)
    host = this_host()
    check(found, host)
    lock = read_lock(found.version)
    capsule = _at(folder_for(found.version, lock.sha256), lock, found)
    if not verify(capsule):
        return capsule
    with _cache_errors(found.version), Progress(found.version, lock.count(), wanted(progress)) as p:
        with _locked(capsule.folder, p):
            # Another process may have built it while this one waited.
            if verify(capsule):
                _build_into(capsule.folder, found, lock, p)
    return capsule


def remove(version: str) -> int:
    """Delete all capsules of release ``version`` from the cache; returns how many there were."""
    folders = [folder for folder in _folders() if folder.name.split("-", 1)[0] == version]
    with _cache_errors(version):
        for folder in folders:
            with _locked(folder, Progress(version, 0, False)):
                _discard(folder)
    return len(folders)


def installed() -> list[dict[str, Any]]:
    """The capsules in the cache, one row each, ready for a DataFrame.

    ``bytes`` counts every file; most of it is shared with uv's cache and other capsules.
    """
    rows = []
    for folder in _folders():
        manifest = read_manifest(folder)
        if manifest is None:
            continue
        sizes = [
            (Path(root) / name).lstat().st_size
            for root, _, names in os.walk(folder)
            for name in names
        ]
        rows.append(
            {
                "release": manifest.get("release"),
                "platform": folder.name.split("-", 1)[1].rsplit("-", 1)[0],
                "distributions": len(manifest.get("distributions", {})),
                "files": len(sizes),
                "bytes": sum(sizes),
                "folder": str(folder),
            }
        )
    return rows


def _at(folder: Path, lock: Lock, found: Release) -> Capsule:
    return Capsule(found.version, folder / SITE, child_python(), lock.sha256)


def _folders() -> list[Path]:
    store = store_dir()
    if not store.is_dir():
        return []
    return sorted(p for p in store.iterdir() if p.is_dir() and not p.name.startswith("."))


def _build_into(folder: Path, found: Release, lock: Lock, progress: Progress) -> None:
    prefix = f"{_UNFINISHED}{folder.name}-"
    # The lock is held, so whoever made such a folder is dead.
    for stale in folder.parent.glob(f"{prefix}*"):
        _discard(stale)
    scratch = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        build(found, lock, this_host(), scratch, progress)
        # mkdtemp makes it private; a shared cache should be readable as its parent is.
        scratch.chmod(folder.parent.stat().st_mode & 0o777)
        if folder.exists():
            _discard(folder)
        scratch.rename(folder)
    finally:
        if scratch.exists():
            _discard(scratch)


def _discard(folder: Path) -> None:
    """Delete a folder; renamed first, so that nobody can take or go on filling half of it."""
    grave = Path(
        tempfile.mkdtemp(prefix=f"{_UNFINISHED}{folder.name.lstrip('.')}-", dir=folder.parent)
    )
    with contextlib.suppress(FileNotFoundError):
        folder.rename(grave / "gone")
    shutil.rmtree(grave, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path, progress: Progress) -> Iterator[None]:
    locks = folder.parent / ".locks"
    locks.mkdir(parents=True, exist_ok=True)
    lock = FileLock(locks / f"{folder.name}.lock")
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
def _cache_errors(version: str) -> Iterator[None]:
    """Say what it means for a capsule that the cache cannot be written."""
    try:
        yield
    except OSError as error:
        raise CapsuleError(
            f"The cache cannot hold the capsule of SGLang {version} "
            f"({error.strerror or error}: {error.filename or store_dir()}); make room or make it "
            "writable, or set CASEBOOK_CACHE to another folder."
        ) from error
