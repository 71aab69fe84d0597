"""One run from its start to its record: the same function here, on a Dask worker, in an array job."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casebook.errors import RunError
from casebook.runs import manifest
from casebook.runs.execute import DEFAULT_SECONDS, execute
from casebook.runs.outcome import RunResult, State
from casebook.runs.spec import RunSpec
from casebook.runs.store import Store


@dataclass(frozen=True)
class Limits:
    """What a run may use."""

    seconds: float = DEFAULT_SECONDS
    """Until it is stopped, each time it is started."""
    retries: int = 1
    """Further starts after an infrastructure fault; a failed cell or check is never tried again."""


def run_one(
    spec: RunSpec,
    store: Store,
    limits: Limits = Limits(),
    *,
    stop: threading.Event | None = None,
    on_cell: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Run ``spec``, leave its notebook, its log and then its record in ``store``."""
    if store.folder:
        result = _tried(spec, store.folder, limits, stop, on_cell)
    else:
        with tempfile.TemporaryDirectory(prefix="cb-out-") as made:
            result = _tried(spec, Path(made), limits, stop, on_cell)
            store.send(spec, Path(made))
    store.write_record(result)
    return result


def run_line(
    line: Mapping[str, Any], store: Store, limits: Limits = Limits(), *, anew: bool = False
) -> dict[str, Any]:
    """The record of the run that a line of a manifest names; plain data, for another process.

    If the store holds a record of it that came to its end, that is the answer unless ``anew``: a
    scheduler may give a run a second time when it loses sight of the worker that did it.
    """
    try:
        spec = manifest.spec_of(line)
    except RunError as error:
        return {"refused": str(error)}
    if not anew:
        record = store.record(spec.key)
        known = RunResult.from_json(spec, record, Path())
        if known and known.state.came_to_its_end:
            return dict(record)
    return run_one(spec, store, limits).to_json()


def _tried(
    spec: RunSpec,
    out: Path,
    limits: Limits,
    stop: threading.Event | None,
    on_cell: Callable[[int, int], None] | None,
) -> RunResult:
    attempt = 0
    while True:
        attempt += 1
        try:
            result = execute(spec, out, seconds=limits.seconds, stop=stop, on_cell=on_cell)
        except RunError as error:
            return RunResult(spec, State.BAD_PARAMETERS, error=str(error))
        if attempt > limits.retries or not result.state.worth_a_retry:
            return result.at(attempts=attempt)
