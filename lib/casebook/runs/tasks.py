"""A function over many items on a Dask cluster: what notebook runs, case runs and sweeps share.

A worker runs its own checkout's code, so one whose code differs would answer another question: it
refuses. A worker that dies loses its item to another, and the answer that is taken is the one of the
item's end; nothing is lost, and nothing is there twice. Where a child process or the disk fails, the
worker tries again; what SGLang makes of a launch is an answer and is never tried again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

import casebook
from casebook.errors import CasebookError, IndexUnreachableError, SchedulerError, WorkerError
from casebook.runs.spec import code_digest, package_versions

Item = TypeVar("Item")
Answer = TypeVar("Answer")

CONNECT_SECONDS = 10
KILLED = object()
"""In the place of an answer: each worker that took the item died."""
PARTS_PER_THREAD = 4
"""So that the last part to end leaves the others idle for a short while only."""
_SURROUNDINGS = (WorkerError, IndexUnreachableError, OSError)


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


def over(
    client: Any,
    function: Callable[[Item], Answer],
    items: Sequence[Item],
    *,
    label: Callable[[Item], str] = str,
    retries: int = 1,
    advice: str = "start it and its workers, and run this again",
) -> Generator[tuple[int, Answer]]:
    """``(position, function(item))`` as the items end, in any order.

    ``function`` is one of a module of casebook. ``label`` names an item in an error. ``retries`` are
    further tries after a fault of the surroundings. Raises what ``function`` raises, and
    SchedulerError if the cluster fails.
    """
    batch, ours = uuid4().hex, state()
    futures = {
        client.submit(
            answer, function, item, ours, retries, key=f"casebook-{batch}-{position}", pure=False
        ): position
        for position, item in enumerate(items)
    }

    def named(position: int) -> str:
        return label(items[position])

    for position, found in settled(client, futures, named, advice):
        if found is KILLED:
            raise SchedulerError(
                f"Each worker that took {named(position)} died; the usual cause is that memory ran out."
            )
        yield position, found


def settled(
    client: Any, futures: Mapping[Any, Item], label: Callable[[Item], str], advice: str
) -> Generator[tuple[Item, Any]]:
    """What each future stands for, with its answer or ``KILLED``, as they end.

    Raises what the work raised, and SchedulerError if the scheduler goes away or a worker cannot do
    the work at all. ``advice`` says what to do about the former.
    """
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    gone = f"The Dask scheduler at {client.scheduler.address!r} went away; {advice}."
    for future in as_completed(list(futures), loop=client.loop, raise_errors=False):
        item = futures[future]
        try:
            # An answer that was lost with its worker after its end is waited for once more.
            found = future.result()
        except KilledWorker:
            found = KILLED
        except Exception as error:
            # What the work raised is the future's own; what fetching its answer raised is not.
            if future.status != "error" and (
                isinstance(error, (CancelledError, OSError)) or client.status != "running"
            ):
                raise SchedulerError(gone) from error
            if isinstance(error, (CasebookError, OSError)):
                raise
            raise SchedulerError(
                f"A worker could not run {label(item)} ({type(error).__name__}: {error}); set this "
                "checkout up on each worker, and start the worker with its Python."
            ) from error
        yield item, found


def answer(
    function: Callable[[Item], Answer], item: Item, wanted: Sequence[Any], retries: int
) -> Answer:
    """``function(item)`` on a worker, if its code is in the state ``wanted``; else SchedulerError."""
    if state() != wanted:
        raise SchedulerError(
            f"The worker {_worker_name()} refuses: it has another state of casebook or of its packages "
            "than the machine that asks; bring both to one commit and set-up, and start it again."
        )
    for _ in range(retries):
        try:
            return function(item)
        except (CasebookError, OSError) as error:
            # An error that names the item wraps the one that says what went wrong.
            if not any(isinstance(one, _SURROUNDINGS) for one in (error, error.__cause__)):
                raise
    return function(item)


def state() -> list[Any]:
    """What must be the same on each machine for an answer to be the same."""
    return [casebook.__version__, code_digest(), package_versions()]


def parts(items: Sequence[Item], client: Any) -> list[Sequence[Item]]:
    """``items`` cut into parts, in order, some for each thread of the cluster."""
    threads = sum(client.nthreads().values()) or 1
    size = max(1, math.ceil(len(items) / (PARTS_PER_THREAD * threads)))
    return [items[start : start + size] for start in range(0, len(items), size)]


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


def _worker_name() -> str:
    from distributed import get_worker

    try:
        return str(get_worker().address)
    except ValueError:  # called outside a worker
        return "of this process"
