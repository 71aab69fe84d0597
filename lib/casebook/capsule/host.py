"""Which wheel of SGLang a machine can take: decided here, by pure functions.

From 0.5.11 on SGLang's wheels are built for Linux with glibc 2.34 or newer. The lab reads and
imports only their Python files (the sandbox stands in for the compiled extension), so on macOS, or
on an older Linux, the x86_64 Linux wheel serves as well: uv is asked for it by name, for the
distribution ``sglang`` alone. All dependencies are always those of the running platform. This was
run on Linux only; on macOS it has been checked that the locks resolve, not that a capsule works.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from dataclasses import dataclass

from casebook.capsule.lockfile import PYTHONS
from casebook.catalog.releases import Release
from casebook.errors import CapsuleError

FOREIGN_PLATFORM = "x86_64-manylinux_2_34"
"""uv's name for the platform whose SGLang wheel is taken where there is none for the machine."""

_LOCKED = " to ".join(f"{major}.{minor}" for major, minor in (PYTHONS[0], PYTHONS[-1]))
_SERVED = frozenset({("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64")})


@dataclass(frozen=True)
class Host:
    """What the choice of a wheel depends on. ``glibc`` is None where the C library is another."""

    system: str
    machine: str
    glibc: tuple[int, int] | None
    python: tuple[int, int]
    implementation: str = "cpython"


def this_host() -> Host:
    """The running machine and interpreter."""
    glibc = None
    with contextlib.suppress(AttributeError, OSError, ValueError):
        name, _, number = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        if name == "glibc":
            major, minor = number.split(".")[:2]
            glibc = (int(major), int(minor))
    return Host(
        system=sys.platform,
        machine=platform.machine().lower(),
        glibc=glibc,
        python=(sys.version_info.major, sys.version_info.minor),
        implementation=sys.implementation.name,
    )


def check(release: Release, host: Host) -> None:
    """Raise CapsuleError if no capsule of ``release`` can exist on ``host``, and say why."""
    if (host.system, host.machine) not in _SERVED or (host.system == "linux" and not host.glibc):
        libc = "" if host.glibc or host.system != "linux" else " without glibc"
        raise CapsuleError(
            f"Capsules need Linux with glibc (x86_64 or aarch64) or macOS on arm64, and this is "
            f"{host.system} on {host.machine}{libc}, for which SGLang's dependencies have no "
            "wheels; run the lab on one of those, such as in a container or in WSL."
        )
    name = f"{host.python[0]}.{host.python[1]}"
    if host.implementation != "cpython":
        raise CapsuleError(
            f"Capsules need CPython, and this is {host.implementation} {name}; run the lab with "
            f"CPython {_LOCKED}."
        )
    if not release.supports(host.python):
        wheels = f" and has wheels for {', '.join(release.pythons)}" if release.pythons else ""
        raise CapsuleError(
            f"SGLang {release.version} cannot be installed for Python {name}: it wants "
            f"{release.requires_python}{wheels}; run the lab with one of these, such as 3.11."
        )
    if host.python not in PYTHONS:
        raise CapsuleError(
            f"The locks of data/capsules/ are for CPython {_LOCKED}, and this is {name}; run the "
            "lab with one of these."
        )


def sglang_platform(release: Release, host: Host) -> str | None:
    """The ``--python-platform`` to install ``sglang`` with, or None for the machine's own."""
    if release.wheel == "any":
        return None
    needed = tuple(int(part) for part in release.wheel.split("_")[1:])
    native = (
        host.system == "linux"
        and host.machine in ("x86_64", "aarch64")
        and host.glibc is not None
        and host.glibc >= needed
    )
    return None if native else FOREIGN_PLATFORM
