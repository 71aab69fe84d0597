"""What a capsule is, and the folder layout that holds one.

::

    capsules/0.5.11-cp311-linux_x86_64-1a2b3c4d5e6f/
        manifest.json     what was installed, and by which recipe
        site/             goes on the child's sys.path; holds sglang/ and its dependencies

The folder's name carries all that decides its contents (release, CPython, platform, digest of the
lock), so that two checkouts with different locks can share one cache.
"""

from __future__ import annotations

import difflib
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from casebook.errors import CapsuleError
from casebook.paths import cache_dir

MANIFEST = "manifest.json"
SITE = "site"


@dataclass(frozen=True)
class Capsule:
    """One SGLang release on disk, without GPU packages; or, if ``live``, a Python that has all.

    ``site`` is the folder that holds ``sglang/``; ``python`` is the interpreter for the child.
    ``lock_sha256`` is empty for a live one.
    """

    release: str
    site: Path
    python: Path
    lock_sha256: str
    live: bool = False

    @property
    def sglang(self) -> Path:
        """The folder of the ``sglang`` package."""
        return self.site / "sglang"

    @property
    def folder(self) -> Path:
        """The capsule's own folder (of a live one, the same as ``site``)."""
        return self.site if self.live else self.site.parent

    def source(self, relative: str) -> str:
        """The text of a file of SGLang, such as ``"srt/server_args.py"``."""
        path = self.sglang / relative
        try:
            inside = path.resolve().is_relative_to(self.sglang.resolve())
            return path.read_text(encoding="utf-8") if inside else self._no_such(relative)
        except (OSError, UnicodeDecodeError):
            return self._no_such(relative)

    def _no_such(self, relative: str) -> str:
        siblings = [p.name for p in (self.sglang / relative).parent.glob("*.py")]
        near = difflib.get_close_matches(Path(relative).name, siblings, n=3)
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        raise CapsuleError(
            f"SGLang {self.release} has no readable source file {relative!r} under {self.sglang}; "
            f"name it relative to the package, as in 'srt/server_args.py'.{guess}"
        )


def child_python() -> Path:
    """The interpreter children of a capsule run under: the base of the running environment.

    A virtual environment's own interpreter would put the lab's packages before the capsule's.
    """
    return Path(getattr(sys, "_base_executable", None) or sys.executable)


def tag() -> str:
    """The running CPython and platform as they stand in a capsule's folder name."""
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"cp{sys.version_info.major}{sys.version_info.minor}-{platform}"


def store_dir() -> Path:
    """The folder that holds all capsules, in the cache."""
    return cache_dir() / "capsules"


def folder_for(version: str, lock_sha256: str) -> Path:
    """Where the capsule of release ``version`` belongs for the running Python."""
    return store_dir() / f"{version}-{tag()}-{lock_sha256[:12]}"
