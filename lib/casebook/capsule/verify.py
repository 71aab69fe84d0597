"""Is a capsule on disk what was installed? A cheap check at every use, and a deep one on request.

Each installed distribution has a RECORD with the size and hash of every file. The manifest, written
last, holds the digest of SGLang's RECORD; so the cheap check needs to read two small files and ask
the size of each of SGLang's Python files. The deep one hashes every file of every distribution.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casebook.capsule.model import MANIFEST, Capsule

RECIPE = 1
"""Raised when a change in how capsules are built makes the ones on disk unfit."""


@dataclass(frozen=True)
class Recorded:
    """One line of a RECORD: path relative to the site folder, size in bytes, sha256 in base64."""

    path: str
    size: int
    encoded: str

    @property
    def digest(self) -> bytes:
        """The sha256 digest itself."""
        return base64.urlsafe_b64decode(self.encoded + "=" * (-len(self.encoded) % 4))


def record_path(capsule: Capsule) -> Path:
    """SGLang's RECORD in the capsule."""
    return capsule.site / f"sglang-{capsule.release}.dist-info" / "RECORD"


def read_record(path: Path) -> Iterator[Recorded]:
    """The files a RECORD lists with a hash (RECORD itself, and files made later, have none)."""
    with path.open(encoding="utf-8", newline="") as lines:
        for name, mark, size in csv.reader(lines):
            algorithm, _, encoded = mark.partition("=")
            if algorithm == "sha256":
                yield Recorded(name, int(size), encoded)


def distributions(site: Path) -> dict[str, str]:
    """Installed distributions and their versions, by the names of their dist-info folders."""
    with os.scandir(site) as entries:
        names = sorted(entry.name for entry in entries if entry.name.endswith(".dist-info"))
    stems = [name.removesuffix(".dist-info") for name in names]
    return {name: version for name, _, version in (stem.partition("-") for stem in stems)}


def python_sizes(folder: Path) -> dict[str, int]:
    """The size in bytes of each ``.py`` file under ``folder``, by path relative to its parent."""
    # Plain strings: this runs at every use of a capsule, over some two thousand files.
    sizes: dict[str, int] = {}
    start = len(str(folder.parent)) + 1
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.name.endswith(".py"):
                    sizes[entry.path[start:].replace(os.sep, "/")] = entry.stat().st_size
    return sizes


def manifest_for(capsule: Capsule) -> dict[str, Any]:
    """The manifest of a capsule just installed."""
    sizes = python_sizes(capsule.sglang)
    every = [
        (Path(root) / name).lstat().st_size
        for root, _, names in os.walk(capsule.site)
        for name in names
    ]
    return {
        "recipe": RECIPE,
        "release": capsule.release,
        "lock_sha256": capsule.lock_sha256,
        "python_files": len(sizes),
        "python_bytes": sum(sizes.values()),
        "record_sha256": hashlib.sha256(record_path(capsule).read_bytes()).hexdigest(),
        "files": len(every),
        "bytes": sum(every),
        "distributions": distributions(capsule.site),
    }


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest in a capsule's folder, or None if it is missing or unreadable."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def verify(capsule: Capsule, *, deep: bool = False) -> list[str]:
    """What is wrong with a capsule, one sentence each; an empty list if nothing is.

    ``deep`` also hashes every file of every distribution (some seconds). A live Python has no
    manifest: of it, only the presence of SGLang is checked.
    """
    if capsule.live:
        there = (capsule.sglang / "__init__.py").is_file()
        return [] if there else [f"{capsule.sglang} holds no package."]
    manifest = read_manifest(capsule.folder)
    if manifest is None:
        return [f"{capsule.folder / MANIFEST} is missing or unreadable."]
    expected = {
        "recipe": RECIPE,
        "release": capsule.release,
        "lock_sha256": capsule.lock_sha256,
    }
    problems = [
        f"The manifest says {key} {manifest.get(key)!r}, and {value!r} is wanted."
        for key, value in expected.items()
        if manifest.get(key) != value
    ]
    try:
        problems += _verify_sglang(capsule, manifest)
        if deep:
            problems += _verify_hashes(capsule)
    except (OSError, ValueError) as error:
        problems.append(f"The capsule cannot be read: {error}.")
    return problems


def _verify_sglang(capsule: Capsule, manifest: dict[str, Any]) -> list[str]:
    record = record_path(capsule)
    if not record.is_file():
        return [f"sglang {capsule.release} is not installed in {capsule.site}."]
    if hashlib.sha256(record.read_bytes()).hexdigest() != manifest.get("record_sha256"):
        return [f"{record} is not the one that was installed."]
    recorded = {r.path: r.size for r in read_record(record) if r.path.endswith(".py")}
    found = python_sizes(capsule.sglang)
    problems = []
    for name in sorted(recorded.keys() | found.keys()):
        if not name.startswith("sglang/"):
            continue
        if name not in found:
            problems.append(f"{name} is missing.")
        elif name not in recorded:
            problems.append(f"{name} was added after the installation.")
        elif recorded[name] != found[name]:
            problems.append(f"{name} has {found[name]} bytes, and {recorded[name]} were installed.")
    if (len(found), sum(found.values())) != (
        manifest.get("python_files"),
        manifest.get("python_bytes"),
    ):
        problems.append("The number or size of SGLang's Python files differs from the manifest.")
    missing = set(manifest.get("distributions", {})) - set(distributions(capsule.site))
    return problems + [f"The distribution {name} is missing." for name in sorted(missing)]


def _verify_hashes(capsule: Capsule) -> list[str]:
    problems = []
    for record in sorted(capsule.site.glob("*.dist-info/RECORD")):
        for entry in read_record(record):
            path = capsule.site / entry.path
            try:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").digest()
            except OSError:
                problems.append(f"{entry.path} is missing or unreadable.")
                continue
            if digest != entry.digest:
                problems.append(f"{entry.path} does not have the hash that was installed.")
    return problems
