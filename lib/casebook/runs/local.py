"""Runs on this machine, some at a time. The threads only wait for child processes, so nothing is shared."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed

from casebook.runs.execute import BatchStoppedError
from casebook.runs.one import Limits, run_one
from casebook.runs.outcome import RunResult
from casebook.runs.progress import Bar
from casebook.runs.spec import RunSpec
from casebook.runs.store import Store


def run_here(
    specs: Sequence[RunSpec], store: Store, limits: Limits, jobs: int, bar: Bar
) -> Generator[RunResult]:
    """The results as they come; if the caller stops listening, what still runs is killed."""
    stop = threading.Event()

    def run(spec: RunSpec) -> RunResult:
        if stop.is_set():
            raise BatchStoppedError
        bar.starts(spec)
        return run_one(spec, store, limits, stop=stop, on_cell=lambda n, of: bar.at(spec, n, of))

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        futures = [pool.submit(run, spec) for spec in specs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except (BatchStoppedError, CancelledError):
            raise KeyboardInterrupt from None
        finally:
            # After Ctrl-C or a fault of ours: children have sessions of their own and must be told.
            stop.set()
            for future in futures:
                future.cancel()
