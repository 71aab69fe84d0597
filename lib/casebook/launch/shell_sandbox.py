"""Run a script's shell where nothing else can run, and record how each command would be called.

The sandbox is bubblewrap's: no network, no file of this machine but bash and its libraries, nothing
writable but a small scratch folder in memory, limits on time, processes, memory and output. In place
of every external command stands a recorder (``recorder.sh``), so ``rm`` is written down and not run.
Which commands those are shows as it runs: bash names what it misses, and the run is repeated with it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from casebook.errors import LaunchError
from casebook.launch.sandbox_calls import Call
from casebook.launch.sandbox_layout import USUAL, grown, place
from casebook.launch.sandbox_process import ShellLimits, start

MAX_ROUNDS = 16

_LINE_ERROR = re.compile(r"(?m)^script: line (\d+): (.+)$")


class SandboxUnavailableError(LaunchError):
    """This machine has no sandbox to run a shell in."""


@dataclass(frozen=True)
class Recording:
    """What a run showed."""

    calls: tuple[Call, ...]
    status: int
    stopped: str
    """The limit that ended it; empty if it ended by itself."""
    errors: tuple[tuple[int, str], ...]
    """What bash complained about, by line."""
    seconds: float
    rounds: int
    made: tuple[str, ...] = field(default=())
    """Paths that were made for the script: commands, folders, files to write."""
    given: frozenset[str] = frozenset()
    """Those of them that were there from the start."""


@lru_cache(maxsize=1)
def unavailable() -> str:
    """Why no sandbox can be had on this machine; empty if one can."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap exists on Linux only"
    if shutil.which("bwrap") is None:
        return "bubblewrap (`bwrap`) is not installed"
    if shutil.which("bash") is None:
        return "bash is not installed"
    try:
        found = start("exit 7", {}, (), {}, ShellLimits(seconds=10))
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap cannot start: {error}"
    if found.status != 7:
        return "bubblewrap cannot make user namespaces here"
    return ""


def record(
    script: str,
    *,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    commands: Iterable[str] = (),
    limits: ShellLimits | None = None,
) -> Recording:
    """Run ``script`` with bash in the sandbox and return every command it would start.

    ``commands`` names commands that are known to occur, which saves repetitions; ``files`` are put
    beside the script. Raises SandboxUnavailableError where there is no sandbox.
    """
    if reason := unavailable():
        raise SandboxUnavailableError(f"The script's shell cannot be run safely here: {reason}.")
    limits = limits or ShellLimits()
    layout: dict[str, str] = {}
    for name in (*USUAL, *commands):
        place(layout, name)
    given = frozenset(path for path in layout if path.startswith("/bin/"))
    deadline = time.monotonic() + limits.seconds * 3
    rounds = 0
    while True:
        rounds += 1
        found = start(script, dict(environment or {}), arguments, layout, limits, dict(files or {}))
        wider = grown(layout, found.text)
        if rounds >= MAX_ROUNDS or found.stopped or wider == layout or time.monotonic() > deadline:
            break
        layout = wider
    errors = tuple((int(m[1]), m[2][:200]) for m in _LINE_ERROR.finditer(found.text))[:50]
    made = tuple(sorted(layout))
    return Recording(
        found.calls, found.status, found.stopped, errors, found.seconds, rounds, made, given
    )


__all__ = [
    "Call",
    "Recording",
    "SandboxUnavailableError",
    "ShellLimits",
    "record",
    "unavailable",
]
