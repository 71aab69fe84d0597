"""Every error a user can meet, as one family.

Each message is one sentence that says what is wrong, where, and what to do. The command line
prints the message alone and exits 2; a notebook shows it without a traceback into our code.
A fault of ours is *not* of this family, so that it stays loud.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class CasebookError(Exception):
    """Base of all errors caused by input or surroundings, not by a fault in casebook."""


class DataError(CasebookError):
    """A file under ``data/`` is missing or malformed."""


class UnknownNameError(CasebookError):
    """A name the catalog does not hold; the message carries the nearest names it does hold."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str) -> None:
        self.kind, self.name, self.known, self._hint = kind, name, tuple(known), hint
        near = nearest(name, self.known)
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"Unknown {kind} {name!r}.{guess} {hint}".rstrip())

    def __reduce__(self) -> tuple[Any, ...]:  # what made it, for it may come from another process
        return (type(self), (self.kind, self.name, self.known, self._hint))


class UnknownReleaseError(UnknownNameError):
    """An SGLang release that ``data/releases.toml`` does not list."""


class UnknownGpuError(UnknownNameError):
    """A GPU profile that ``data/gpus.toml`` does not list."""


class UnknownModelError(UnknownNameError):
    """A model that ``data/models/`` does not describe and that is no local checkpoint."""


class ModelConfigError(CasebookError):
    """A checkpoint's ``config.json`` is missing, truncated or not a model configuration."""


class LaunchError(CasebookError):
    """A command line that is not an SGLang server launch, or cannot be read as one."""


class CapsuleError(CasebookError):
    """A capsule could not be built or verified."""


class IndexUnreachableError(CapsuleError):
    """The package index did not answer."""


class WorkerError(CasebookError):
    """The child process that holds a capsule could not start, or died outside a launch."""


class CaseError(CasebookError):
    """A file that cannot be read as a case; the message names file and line."""


class UnknownCaseError(UnknownNameError):
    """A case that ``data/cases/`` does not hold."""


class RunError(CasebookError):
    """A notebook run that was asked for wrongly: no such notebook, parameter or value."""


class SchedulerError(CasebookError):
    """A Dask scheduler that does not answer, or went away during a batch."""


class StoreError(CasebookError):
    """The place where runs leave their results could not be written."""


class MemoryPlanError(CasebookError):
    """What a launch needs in memory cannot be told, and why."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The ``count`` known names most like ``name``, best first, ignoring case."""
    by_folded = {k.casefold(): k for k in known}
    found = difflib.get_close_matches(name.casefold(), list(by_folded), n=count, cutoff=0.5)
    return [by_folded[f] for f in found]
