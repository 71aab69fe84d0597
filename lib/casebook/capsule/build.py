"""Installing one capsule into an empty folder.

Dependencies are hard-linked from uv's cache, as uv does by default: a second capsule costs little
disk, but *a file of a dependency must never be written to in place*, since it is the very file in
uv's cache and in other capsules. SGLang's own files, the ones somebody may want to edit while
looking into a case, are copied and made read-only, so that no edit reaches past its capsule.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from casebook.capsule.host import Host, sglang_platform
from casebook.capsule.lockfile import Lock
from casebook.capsule.model import MANIFEST, SITE, Capsule, child_python
from casebook.capsule.progress import Progress
from casebook.capsule.uvtool import run_uv
from casebook.capsule.verify import manifest_for, python_sizes, verify
from casebook.catalog.releases import Release
from casebook.errors import CapsuleError


@dataclass(frozen=True)
class Step:
    """One run of ``uv pip install``: what it installs, its requirements file and extra options."""

    what: str
    requirements: str
    options: tuple[str, ...]


def plan(release: Release, lock: Lock, host: Host) -> tuple[Step, ...]:
    """The installs that make a capsule of ``release`` on ``host``; a pure function."""
    foreign = sglang_platform(release, host)
    options = ("--link-mode", "copy", *(("--python-platform", foreign) if foreign else ()))
    return (
        Step("dependencies", lock.render(without="sglang"), ()),
        Step("sglang", lock.render(only="sglang"), options),
    )


def build(release: Release, lock: Lock, host: Host, folder: Path, progress: Progress) -> Capsule:
    """Install, verify and describe a capsule in the empty ``folder``."""
    site = folder / SITE
    site.mkdir()
    capsule = Capsule(release.version, site, child_python(), lock.sha256)
    for number, step in enumerate(plan(release, lock, host)):
        progress.step(f"resolving {step.what}")
        requirements = folder / f"requirements-{number}.txt"
        requirements.write_text(step.requirements, encoding="utf-8")
        run_uv(
            [
                *("pip", "install", "--target", str(site), "--python", str(child_python())),
                *("--require-hashes", "--no-deps", "--no-build", "-r", requirements.name),
                *step.options,
            ],
            what=f"installing SGLang {release.version} ({step.what})",
            cwd=folder,
            on_line=progress.uv_line,
        )
        requirements.unlink()
    progress.step("verifying")
    for path in _sglang_files(capsule):
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    manifest = manifest_for(capsule)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    if problems := verify(capsule):
        raise CapsuleError(
            f"The capsule of SGLang {release.version} was installed but is not whole: "
            f"{problems[0]} Try again, after `uv cache clean sglang` if it stays so."
        )
    return capsule


def _sglang_files(capsule: Capsule) -> Iterator[Path]:
    for name in python_sizes(capsule.sglang):
        yield capsule.site / name
