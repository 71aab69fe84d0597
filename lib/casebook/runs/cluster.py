"""Runs on a Dask cluster: the same ``run_line`` for each, wherever a worker is free.

Each worker needs the same commit of the checkout and a store that it and the batch reach: a shared
folder, or a bucket. A worker that dies loses nothing: Dask gives its run to another, and the run's
own child process ends with the worker, so that no run is done twice at one time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from casebook.runs import manifest
from casebook.runs.one import Limits, run_line
from casebook.runs.outcome import RunResult, State
from casebook.runs.spec import RunSpec
from casebook.runs.store import Store
from casebook.runs.tasks import KILLED, settled


def run_there(
    client: Any, specs: Sequence[RunSpec], store: Store, limits: Limits, *, anew: bool
) -> Generator[RunResult]:
    """The results as they come; SchedulerError if the scheduler goes away."""
    futures = {
        client.submit(
            run_line,
            manifest.line(spec),
            store,
            limits,
            anew=anew,
            key=f"casebook-{spec.key}",
            pure=False,
        ): spec
        for spec in specs
    }
    advice = "what has ended is kept, and the same command goes on from there"
    for spec, record in settled(client, futures, lambda spec: spec.label, advice):
        if record is KILLED:
            yield RunResult(
                spec,
                State.LOST,
                error="Each worker that took it died; the usual cause is that memory ran out.",
            )
        else:
            yield _result(spec, record)


def _result(spec: RunSpec, record: dict[str, Any]) -> RunResult:
    if "refused" in record:
        return RunResult(spec, State.LOST, error=record["refused"])
    found = RunResult.from_json(spec, record, Path("notebooks"))
    if found is None:
        return RunResult(spec, State.LOST, error="A worker answered with another run's record.")
    return found.at(reused=False)
