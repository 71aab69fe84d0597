"""Run many specs, here or on a cluster, and keep a record of each.

A record is written by one rename when its run has ended, and the manifest before the first starts and
after the last ended, so an interrupted batch, however it was ended, goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from casebook.errors import RunError
from casebook.runs import cluster, manifest, report
from casebook.runs.execute import DEFAULT_SECONDS
from casebook.runs.files import read_json
from casebook.runs.local import run_here
from casebook.runs.one import Limits
from casebook.runs.outcome import RunResult
from casebook.runs.progress import Bar
from casebook.runs.spec import RunSpec
from casebook.runs.store import Store
from casebook.runs.tasks import connection


def run_batch(
    specs: Sequence[RunSpec],
    out: Path,
    jobs: int = 2,
    *,
    force: bool = False,
    seconds: float = DEFAULT_SECONDS,
    retries: int = 1,
    progress: bool = True,
    scheduler: str = "",
    store: str = "",
) -> list[RunResult]:
    """The results of ``specs``, in their order; a spec that stands twice is run once.

    A spec with a sound record that it came to its end is not run again, unless ``force``.
    ``seconds`` is the limit of each run, ``retries`` how often a run is started again after an
    infrastructure fault. ``progress`` shows a bar on stderr. ``scheduler`` is the address of a Dask
    scheduler that runs them instead of this machine. ``store`` is where the runs leave their files
    if not in ``out``: a folder or an address; they are fetched from there.
    """
    unique = {spec.key: spec for spec in reversed(specs)}
    keys = list(dict.fromkeys(spec.key for spec in specs))
    place = Store.of(store or out)
    # A scheduler that does not answer must cost nothing, so it is asked first.
    with sole_batch(out), connection(scheduler) as client:
        results = {} if force else _already(unique, keys, out, place)
        waiting = [unique[key] for key in keys if key not in results]
        for spec in waiting:
            # An old record must not outlive the start of a new batch that is then interrupted.
            record_path(spec, out).unlink(missing_ok=True)
        manifest.write(out / manifest.MANIFEST, specs, results)
        limits = Limits(seconds, retries)
        with Bar(len(keys), len(results), progress) as bar:
            ended = (
                cluster.run_there(client, waiting, place, limits, anew=force)
                if client is not None
                else run_here(waiting, place, limits, jobs, bar)
            )
            try:
                with closing(ended):
                    for result in ended:
                        results[result.spec.key] = _kept(result, out, place)
                        bar.ends(result)
            finally:
                manifest.write(out / manifest.MANIFEST, specs, results)
        in_order = [results[key] for key in keys]
        report.write_csv(in_order, out / "results.csv")
        report.write_junit(in_order, out / "junit.xml")
    return [results[spec.key] for spec in specs]


def recorded(spec: RunSpec, out: Path) -> RunResult | None:
    """The result that ``out`` holds for ``spec``, with its executed notebook; None if none."""
    record = read_json(record_path(spec, out))
    result = RunResult.from_json(spec, record, out / "notebooks")
    ended = result and result.state.came_to_its_end
    if ended and not (result and result.output and result.output.is_file()):
        return None
    return result


def record_path(spec: RunSpec, out: Path) -> Path:
    """Where the record of ``spec`` stands."""
    return out / "records" / f"{spec.key}.json"


def _already(
    unique: dict[str, RunSpec], keys: list[str], out: Path, place: Store
) -> dict[str, RunResult]:
    """The runs that came to their end before, in this folder or in the store of other machines."""
    found = {}
    for key in keys:
        known = recorded(unique[key], out)
        if known is None and place != Store.of(out):
            known = RunResult.from_json(unique[key], place.record(key), out / "notebooks")
            known = known and _kept(known, out, place)
        if known and known.state.came_to_its_end:
            found[key] = known
    return found


def _kept(result: RunResult, out: Path, place: Store) -> RunResult:
    """The result with its files in ``out``: fetched, if the run left them elsewhere."""
    here = Store.of(out)
    if place != here:
        place.fetch(result.spec, out)
    output = out / "notebooks" / f"{result.spec.slug}.ipynb"
    result = result.at(output=output if output.is_file() else None)
    if here.record(result.spec.key) is None:
        here.write_record(result)
    return result


@contextmanager
def sole_batch(out: Path) -> Iterator[None]:
    """Keep a second batch out of ``out``; the lock goes with this process, however it ends."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(out / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise RunError(
            f"Another batch writes to {str(out)!r} now; wait for it, or name another folder."
        ) from error
