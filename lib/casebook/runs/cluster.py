"""Runs on a Dask cluster: the same ``run_line`` for each, wherever a worker is free.

Each worker needs the same commit of the checkout and a store that it and the batch reach: a shared
folder, or a bucket. A worker that dies loses nothing: Dask gives its run to another, and the run's
own child process ends with the worker, so that no run is done twice at one time.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from casebook.errors import CasebookError, SchedulerError
from casebook.runs import manifest
from casebook.runs.one import Limits, run_line
from casebook.runs.outcome import RunResult, State
from casebook.runs.spec import RunSpec
from casebook.runs.store import Store

CONNECT_SECONDS = 10


@contextmanager
def connection(address: str) -> Iterator[Any]:
    """A client of the scheduler at ``address``; None if that is empty.

    SchedulerError if nothing answers there. What is still queued when the client closes is dropped,
    so that an abandoned batch does not go on.
    """
    if not address:
        yield None
        return
    client = _connect(address)
    try:
        yield client
    finally:
        client.close(timeout=CONNECT_SECONDS)


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise SchedulerError(
            "--scheduler needs the package 'distributed'; run 'make' again, or install it."
        ) from error
    for name in ("distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # we say it ourselves, in one sentence
    try:
        return Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise SchedulerError(
            f"No Dask scheduler answers at {address!r}; start one with 'dask scheduler', or name "
            "the address that it prints."
        ) from error


def run_there(
    client: Any, specs: Sequence[RunSpec], store: Store, limits: Limits, *, anew: bool
) -> Generator[RunResult]:
    """The results as they come; SchedulerError if the scheduler goes away."""
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    address = client.scheduler.address
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
    for future in as_completed(futures, loop=client.loop, raise_errors=False):
        spec = futures[future]
        if future.status == "finished":
            yield _result(spec, future.result())
        elif isinstance(error := _error_of(future), KilledWorker):
            yield RunResult(
                spec,
                State.LOST,
                error="Each worker that took it died; the usual cause is that memory ran out.",
            )
        elif isinstance(error, CasebookError | OSError):
            raise error
        elif error is not None:
            raise SchedulerError(
                f"A worker could not run {spec.label} ({type(error).__name__}: {error}); set this "
                "checkout up on each worker, and start the worker with its Python."
            ) from error
        else:
            raise SchedulerError(
                f"The Dask scheduler at {address!r} went away; what has ended is kept, and the same "
                "command goes on from there."
            )


def _error_of(future: Any) -> Exception | None:
    """What the run raised; None if nobody knows what became of it."""
    if future.status != "error":
        return None
    found: Exception | None = future.exception()
    return found


def _result(spec: RunSpec, record: dict[str, Any]) -> RunResult:
    if "refused" in record:
        return RunResult(spec, State.LOST, error=record["refused"])
    found = RunResult.from_json(spec, record, Path("notebooks"))
    if found is None:
        return RunResult(spec, State.LOST, error="A worker answered with another run's record.")
    return found.at(reused=False)
