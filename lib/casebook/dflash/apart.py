"""A package of the index in a folder of its own: for its files, or beside packages it would not suit."""

from __future__ import annotations

import sys
from pathlib import Path

from filelock import FileLock

from casebook.capsule.uvtool import run_uv


def installed_apart(package: str, home: Path, wanted: str) -> Path:
    """The folder in ``home`` that holds ``package`` (``name==version``) without its dependencies.

    Installed on first use, which is while no file there matches the pattern ``wanted``; CapsuleError
    where that fails.
    """
    home.mkdir(exist_ok=True)
    folder = home / package.replace("==", "-")
    with FileLock(home / f"{folder.name}.lock"):
        if not any(folder.glob(wanted)):
            run_uv(
                [
                    *("pip", "install", "--quiet", "--no-deps", "--python", sys.executable),
                    *("--target", str(folder), package),
                ],
                what=f"fetching {package}",
                cwd=home,
            )
    return folder
