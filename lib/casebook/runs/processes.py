"""Ending a run's processes, all of them.

A kernel leads a process group of its own, and a server that a notebook started may have left the
tree altogether, so neither a signal to the group nor the tree alone is enough: whatever carries the
run's token in its environment belongs to the run too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psutil  # type: ignore[import-untyped]

TOKEN_VARIABLE = "CASEBOOK_RUN"


def kill_tree(pid: int, *, spare_root: bool = False) -> None:
    """Kill process ``pid`` and all that descend from it; a process that is gone is fine."""
    try:
        root = psutil.Process(pid)
        # Listed before any is killed: orphans lose the way back to the root.
        doomed = root.children(recursive=True)
    except psutil.NoSuchProcess:
        return
    _kill(doomed if spare_root else [*doomed, root])


def kill_marked(token: str, *, spare: int | None = None) -> None:
    """Kill every process of ours whose environment carries ``token``, but not process ``spare``."""
    _kill([process for process in _marked(token) if process.pid != spare])


def _kill(doomed: list[psutil.Process]) -> None:
    for process in doomed:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(doomed, timeout=5)


def _marked(token: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(TOKEN_VARIABLE) == token:
                yield process
