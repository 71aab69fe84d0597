"""Signals, deaths and left-overs of forked processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Collection
from typing import Any

_SET_PARENT_DEATH_SIGNAL = 1  # <linux/prctl.h>
_SET_CHILD_SUBREAPER = 36


def died(status: int) -> dict[str, Any]:
    """The outcome of a process that ended without an answer, from its wait status."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:  # most real-time signals have no name
            name = f"SIG{number}"
        return {"kind": "died", "signal": name}
    return {"kind": "died", "code": os.WEXITSTATUS(status)}


def poll(pid: int) -> int | None:
    """The wait status of a child that is dead (it is reaped), or None while it lives."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # reaped by code that waits for any child
        return 0
    return status if found else None


def end(pid: int) -> int:
    """Kill a child and its process group, reap it, and return its wait status.

    A child that was already on its way out keeps the status it chose.
    """
    kill(pid)
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return 0


def kill(pid: int) -> None:
    """Kill a session leader and its process group."""
    kill_group(pid)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have no session yet
        os.kill(pid, signal.SIGKILL)


def kill_group(leader: int) -> None:
    """Kill what is left of a process group, whether or not its leader is."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def die_with(parent: int) -> None:
    """Ask Linux to kill this process when ``parent`` dies, however it dies."""
    _prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it died before we asked


def adopt_orphans() -> None:
    """Become the parent of what descendants leave behind (Linux), so that it can be found."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def end_strangers(known: Collection[int]) -> None:
    """Kill children of this process that it did not start: what a launch left in another session."""
    for _ in range(8):  # each round frees the children of the one before
        strangers = set(_children()) - set(known)
        if not strangers:
            return
        for pid in strangers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    found = []
    with contextlib.suppress(OSError):  # no /proc, or a kernel without this file
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as stream:
                found += [int(word) for word in stream.read().split()]
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
