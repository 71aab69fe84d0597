"""Running the notebooks without a person: one run, many, and the pages that show them.

``run_suite`` is what ``casebook run`` calls; ``RunSpec.of`` and ``run_batch`` are for a script's own
grid of parameters. A notebook itself needs only ``casebook.runs.verdict``, which loads nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from casebook.runs.batch import run_batch
    from casebook.runs.outcome import RunResult, State
    from casebook.runs.spec import RunSpec
    from casebook.runs.suite import run_suite

__all__ = ["RunResult", "RunSpec", "State", "run_batch", "run_suite"]

_HOME = {
    "RunResult": "outcome",
    "RunSpec": "spec",
    "State": "outcome",
    "run_batch": "batch",
    "run_suite": "suite",
}


def __getattr__(name: str) -> Any:
    # On demand, so that a notebook's `from casebook.runs import verdict` stays light.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"casebook.runs.{_HOME[name]}"), name)
