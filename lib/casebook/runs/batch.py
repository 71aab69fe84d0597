"""Run many specs, some at a time, and keep a record of each.

The threads only wait for child processes, so nothing is shared between runs. A record is written by
one rename when its run has ended; an interrupted batch goes on where it stopped.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from pathlib import Path

from tqdm.auto import tqdm

from casebook.errors import RunError
from casebook.runs.execute import DEFAULT_SECONDS, BatchStoppedError, execute
from casebook.runs.files import read_json, write_json
from casebook.runs.outcome import RunResult, State
from casebook.runs.spec import RunSpec


def run_batch(
    specs: Sequence[RunSpec],
    out: Path,
    jobs: int = 2,
    *,
    force: bool = False,
    seconds: float = DEFAULT_SECONDS,
    progress: bool = True,
) -> list[RunResult]:
    """The results of ``specs``, in their order; a spec that stands twice is run once.

    A spec with a sound record that it ran to its end under ``out`` is not run again, unless
    ``force``. ``seconds`` is the limit of each run. ``progress`` shows a bar on stderr.
    """
    keys = list(dict.fromkeys(spec.key for spec in specs))
    by_key = {spec.key: spec for spec in reversed(specs)}
    results: dict[str, RunResult] = {}
    if not force:
        for key in keys:
            known = recorded(by_key[key], out)
            if known and known.state is State.OK:
                results[key] = known
    waiting = [by_key[key] for key in keys if key not in results]
    with _Bar(len(keys), len(results), progress) as bar:
        results |= _run_all(waiting, out, jobs, seconds, bar)
    return [results[spec.key] for spec in specs]


def recorded(spec: RunSpec, out: Path) -> RunResult | None:
    """The result that ``out`` holds for ``spec``, with its executed notebook; None if none."""
    record = read_json(record_path(spec, out))
    result = RunResult.from_json(spec, record, out / "notebooks")
    if result and result.state is State.OK and not (result.output and result.output.is_file()):
        return None
    return result


def record_path(spec: RunSpec, out: Path) -> Path:
    """Where the record of ``spec`` stands."""
    return out / "records" / f"{spec.key}.json"


def _run_all(
    specs: list[RunSpec], out: Path, jobs: int, seconds: float, bar: _Bar
) -> dict[str, RunResult]:
    stop = threading.Event()
    results = {}
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        futures = [pool.submit(_run, spec, out, seconds, stop, bar) for spec in specs]
        try:
            for future in as_completed(futures):
                result = future.result()
                results[result.spec.key] = result
        except (BatchStoppedError, CancelledError):
            raise KeyboardInterrupt from None
        finally:
            # After Ctrl-C or a fault of ours: children have sessions of their own and must be told.
            stop.set()
            for future in futures:
                future.cancel()
    return results


def _run(spec: RunSpec, out: Path, seconds: float, stop: threading.Event, bar: _Bar) -> RunResult:
    if stop.is_set():
        raise BatchStoppedError
    # An old record must not outlive the start of a new run that is then interrupted.
    record_path(spec, out).unlink(missing_ok=True)
    bar.starts(spec)
    try:
        result = execute(
            spec, out, seconds=seconds, stop=stop, on_cell=lambda n, of: bar.at(spec, n, of)
        )
    except RunError as error:
        result = RunResult(spec, State.BAD_PARAMETERS, error=str(error))
    write_json(record_path(spec, out), result.to_json())
    bar.ends(result)
    return result


class _Bar:
    """One bar for the batch: what runs now beside it, a line above it for each run that ended."""

    def __init__(self, total: int, reused: int, shown: bool) -> None:
        # None: no bar where stderr is a file or a pipe; the lines of the runs that ended remain.
        hidden = None if shown else True
        self.bar = tqdm(total=total, initial=reused, unit="run", disable=hidden, file=sys.stderr)
        self.shown = shown
        self.running: dict[str, str] = {}
        self.lock = threading.Lock()
        if reused:
            self._say(f"{reused} of {total} runs unchanged since they last ran; not run again.")

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def starts(self, spec: RunSpec) -> None:
        """A run has started."""
        self._note(spec, spec.label)

    def at(self, spec: RunSpec, cell: int, of: int) -> None:
        """A run has come to a cell."""
        self._note(spec, f"{spec.label} {cell}/{of}")

    def ends(self, result: RunResult) -> None:
        """A run has ended; one line stays on the screen."""
        verdict = (result.verdict or {}).get("state", "")
        what = result.error or (result.verdict or {}).get("headline", "")
        line = f"{result.state.value:>14}  {result.seconds:6.1f} s  {result.spec.label}"
        with self.lock:
            self.running.pop(result.spec.key, None)
            self._say("  ".join(filter(None, [line, verdict, what])))
            self.bar.set_postfix_str(", ".join(self.running.values()), refresh=False)
            self.bar.update()

    def _note(self, spec: RunSpec, text: str) -> None:
        with self.lock:
            self.running[spec.key] = text
            self.bar.set_postfix_str(", ".join(self.running.values()))

    def _say(self, line: str) -> None:
        if self.shown:
            self.bar.write(line, file=sys.stderr)
