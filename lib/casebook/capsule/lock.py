"""Locks: the exact distributions of a release's capsule, with hashes, in ``data/capsules/``.

A lock is a requirements file for ``uv pip install --require-hashes``. It is *universal*: one file
serves CPython 3.11 to 3.13 on Linux (x86_64 and aarch64, glibc) and macOS (arm64), told apart by
markers. It lists wheels only, as
building a source distribution would run that project's code at install time, and only wheels for
those platforms, which keeps the file a third of the size. No index address is written into it, so
that it works with any mirror.

Write one, or all, with ``python -m casebook.capsule.lock 0.5.11`` or ``--all``.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from packaging.markers import Marker
from packaging.tags import Tag
from packaging.utils import canonicalize_name, parse_wheel_filename

from casebook.capsule.lockfile import PYTHONS, Entry, lock_path, read_lock
from casebook.capsule.uvtool import run_uv
from casebook.catalog.releases import Release, load_dropped, load_releases, release
from casebook.errors import CapsuleError, CasebookError

_FLOOR = f"python_full_version >= '{PYTHONS[0][0]}.{PYTHONS[0][1]}'"
_SYSTEMS = (
    ("linux", "Linux", "x86_64"),
    ("linux", "Linux", "aarch64"),
    ("darwin", "Darwin", "arm64"),
)


UNDECLARED = ("dill",)
"""Imported by SGLang without being required by it: they came along with a dropped distribution."""


def write_lock(found: Release) -> Path:
    """Resolve ``found`` as of its ``exclude_newer`` day and write its lock; returns the path."""
    with tempfile.TemporaryDirectory(prefix="casebook-lock-") as scratch:
        folder = Path(scratch)
        (folder / "in.txt").write_text("\n".join([f"sglang=={found.version}", *UNDECLARED, ""]))
        # An override with a marker that is never true takes a distribution out of the resolution,
        # and with it everything that only it needs.
        overrides = [f"{d.name} ; python_version < '0'\n" for d in load_dropped()]
        (folder / "overrides.txt").write_text("".join(overrides))
        run_uv(
            [
                *("pip", "compile", "in.txt", "--override", "overrides.txt"),
                # A bare date would be read in the local time zone, and lock differently elsewhere.
                *("--exclude-newer", f"{found.exclude_newer.isoformat()}T00:00:00Z"),
                *("--universal", "--python-version", ".".join(map(str, PYTHONS[0]))),
                *("--only-binary", ":all:", "--no-header", "--no-annotate"),
                *("--format", "pylock.toml", "--output-file", "pylock.toml"),
            ],
            what=f"resolving the dependencies of SGLang {found.version}",
            cwd=folder,
        )
        resolved = tomllib.loads((folder / "pylock.toml").read_text(encoding="utf-8"))
    entries = [e for package in resolved["packages"] if (e := _entry(package)) is not None]
    header = (
        f"# SGLang {found.version} without GPU packages, as of {found.exclude_newer} (UTC).\n"
        f"# Written by `python -m casebook.capsule.lock {found.version}`; do not edit.\n"
        "# Wheels for CPython 3.11 to 3.13 on Linux (glibc) and macOS (arm64).\n"
    )
    path = lock_path(found.version)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(header + "".join(e.render() for e in entries), encoding="utf-8")
    return path


def _entry(package: dict[str, Any]) -> Entry | None:
    """The lock entry of one resolved package, or None where no platform of ours installs it."""
    name, version = canonicalize_name(package["name"]), package["version"]
    marker = package.get("marker", "")
    marker = "" if marker == _FLOOR else marker.removeprefix(f"{_FLOOR} and ")
    if marker and not any(Marker(marker).evaluate(env) for env in _environments()):
        return None
    hashes = sorted(
        wheel["hashes"]["sha256"]
        for wheel in package.get("wheels", ())
        if any(_is_ours(tag) for tag in parse_wheel_filename(_filename(wheel))[3])
    )
    if not hashes:
        raise CapsuleError(
            f"{name} {version} has no wheel for CPython 3.11 to 3.13 on Linux or macOS, so it "
            "cannot be locked; add it to data/capsules/dropped.toml if SGLang's resolution does not "
            "need it."
        )
    return Entry(name, version, marker, tuple(hashes))


def _filename(wheel: dict[str, Any]) -> str:
    name: str = wheel.get("name") or wheel["url"].rsplit("/", 1)[1]
    return name.replace("%2B", "+")


def _is_ours(tag: Tag) -> bool:
    """Whether a wheel with this tag can be installed on a platform a lock serves."""
    numbers = {f"cp{major}{minor}" for major, minor in PYTHONS}
    stable = tag.abi == "abi3" and tag.interpreter.startswith("cp3")
    python_fits = (
        (tag.interpreter in numbers and tag.abi in {*numbers, "none"})
        or (stable and int(tag.interpreter[3:]) <= PYTHONS[-1][1])
        or (tag.interpreter.startswith("py3") and tag.abi == "none")
    )
    linux = "linux" in tag.platform and tag.platform.endswith(("_x86_64", "_aarch64"))
    platform_fits = (
        tag.platform == "any"
        or (tag.platform.startswith("macosx_") and tag.platform.endswith(("_arm64", "_universal2")))
        or (linux and not tag.platform.startswith("musllinux"))
    )
    return python_fits and platform_fits


def _environments() -> Iterator[dict[str, str]]:
    """The marker environments a lock serves."""
    for major, minor in PYTHONS:
        for platform, system, machine in _SYSTEMS:
            yield {
                "python_version": f"{major}.{minor}",
                "python_full_version": f"{major}.{minor}.0",
                "sys_platform": platform,
                "platform_system": system,
                "platform_machine": machine,
                "os_name": "posix",
                "implementation_name": "cpython",
                "platform_python_implementation": "CPython",
            }


@click.command()
@click.argument("versions", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Write the locks of all known releases.")
def main(versions: tuple[str, ...], every: bool) -> None:
    """Write the locks of the given SGLang VERSIONS into data/capsules/."""
    if every == bool(versions):
        raise click.UsageError("Name the releases to lock, or give --all.")
    try:
        for found in load_releases().values() if every else [release(v) for v in versions]:
            path = write_lock(found)
            click.echo(f"{found.version}: {len(read_lock(found.version).entries)} in {path.name}")
    except CasebookError as error:
        click.echo(str(error), err=True)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
