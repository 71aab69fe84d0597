"""From what a person asks for to a batch: which notebooks with which parameters, and the pages after.

``notebooks/runs.toml`` lists runs that the suite makes of a notebook (see :mod:`casebook.runs.grid`);
a notebook that it does not name runs once, with its defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from casebook.errors import CasebookError, RunError, SchedulerError, StoreError, nearest
from casebook.runs import grid as grids
from casebook.runs import manifest
from casebook.runs.batch import run_batch
from casebook.runs.execute import DEFAULT_SECONDS
from casebook.runs.one import Limits, run_line
from casebook.runs.outcome import RunResult, batch_exit_code
from casebook.runs.progress import sentence
from casebook.runs.site import write_site
from casebook.runs.spec import RunSpec, repo_root
from casebook.runs.store import Store

RUNS_FILE = "runs.toml"
BAD_INPUT, INFRASTRUCTURE = 2, 3


def run_suite(
    notebooks: Path | None = None,
    out: Path = Path("results"),
    jobs: int = 2,
    force: bool = False,
    only: Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    runs: Path | None = None,
    planned: Path | None = None,
    plan_to: Path | None = None,
    seconds: float = DEFAULT_SECONDS,
    retries: int = 1,
    scheduler: str = "",
    store: str = "",
    progress: bool = True,
) -> int:
    """Run the notebooks in a folder, write ``out/index.html``, print where it is.

    ``only`` picks notebooks by (part of) their names or paths; ``parameters``, and each point of
    ``grid``, are given to each that is picked, over what ``runs.toml`` says, and may be text, read as
    the declared type says. ``runs`` is a file of runs that takes the place of ``runs.toml``,
    ``planned`` a manifest whose runs are taken as they stand. With ``plan_to`` the manifest is
    written there and nothing runs. Nothing runs either if any of this is wrong. The exit code: 0 all
    ok, 1 a notebook failed or its check did, 2 bad input, 3 only the surroundings failed (time,
    memory, kernel, disk, scheduler).
    """

    def batch() -> int:
        folder = notebooks or repo_root() / "notebooks"
        if planned:
            chosen = [manifest.spec_of(line) for line in manifest.read(planned)]
        else:
            chosen = plan(folder, only, runs, parameters or {}, grid or {})
        if plan_to:
            manifest.write(plan_to, chosen, {})
            print(f"{len({s.key for s in chosen})} runs planned: {plan_to}")
            return 0
        _writable(out)
        results = run_batch(
            chosen,
            out,
            jobs,
            force=force,
            seconds=seconds,
            retries=retries,
            progress=progress,
            scheduler=scheduler,
            store=store,
        )
        index = write_site(out)
        states = [r.state for r in results]
        failed = sum(s.exit_code != 0 for s in states)
        print(f"{len(states) - failed} of {len(states)} runs ok. Read them: {index.resolve()}")
        return batch_exit_code(states)

    return _exit_code(batch)


def run_index(
    planned: Path,
    index: int,
    out: Path,
    *,
    force: bool = False,
    seconds: float = DEFAULT_SECONDS,
    retries: int = 1,
    store: str = "",
) -> int:
    """Run line ``index`` of a manifest alone, as one task of an array job does; the exit code as above.

    Only the run's own files are written; ``casebook run --manifest`` gathers them afterwards.
    """

    def task() -> int:
        line = manifest.pick(planned, index)
        spec = manifest.spec_of(line)
        if not store:
            _writable(out)
        record = run_line(line, Store.of(store or out), Limits(seconds, retries), anew=force)
        result = RunResult.from_json(spec, record, out / "notebooks")
        assert result is not None  # run_line answers for this spec
        print(sentence(result).strip())
        return result.state.exit_code

    return _exit_code(task)


def plan(
    notebooks: Path,
    only: Sequence[str] = (),
    runs: Path | None = None,
    parameters: Mapping[str, Any] | None = None,
    grid: Mapping[str, Sequence[Any]] | None = None,
) -> list[RunSpec]:
    """All runs asked for, checked, in the order of the notebooks' names."""
    found = sorted(p for p in notebooks.glob("*.ipynb") if not p.name.startswith("."))
    outside = [Path(part) for part in only if _is_elsewhere(part, notebooks)]
    if not found and not outside:
        raise RunError(
            f"There is no notebook in {str(notebooks)!r}; name the folder that holds them."
        )
    file = runs or notebooks / RUNS_FILE
    entries = grids.read_runs(file) if runs or file.is_file() else []
    stems = {p.stem: p for p in found}
    by_stem: dict[str, list[grids.Entry]] = {}
    for entry in entries:
        by_stem.setdefault(_stem_of(entry, stems), []).append(entry)
    specs = []
    for path in found:
        default = [] if runs else [grids.Entry("", path.stem)]
        for entry in by_stem.get(path.stem, default):
            specs += [(path, point, entry.name) for point in entry.points()]
    inside = [part for part in only if not _is_elsewhere(part, notebooks)]
    chosen = specs if not only else _chosen(specs, inside) if inside else []
    chosen += [(path, {}, "") for path in outside]
    given = dict(parameters or {})
    return [
        RunSpec.from_text(path, own | given | point, name)
        for path, own, name in chosen
        for point in grids.points(grid or {})
    ]


def _stem_of(entry: grids.Entry, stems: Mapping[str, Path]) -> str:
    stem = entry.notebook.removesuffix(".ipynb").rsplit("/", 1)[-1]
    matches = [stem] if stem in stems else [s for s in stems if s.startswith(f"{stem}_")]
    if len(matches) == 1:
        return matches[0]
    guess = _guess(stem, stems)
    raise RunError(f"{entry.where} names the notebook {stem!r}, which is not there.{guess}")


def _chosen(
    specs: list[tuple[Path, dict[str, Any], str]], only: Sequence[str]
) -> list[tuple[Path, dict[str, Any], str]]:
    picks = [part.removesuffix(".ipynb").rsplit("/", 1)[-1] for part in only]
    for pick in picks:
        if not any(_matches(path, name, pick) for path, _, name in specs):
            names = list(dict.fromkeys(name or path.stem for path, _, name in specs))
            guess = _guess(pick, names)
            raise RunError(f"No run is called {pick!r}; there are {', '.join(names)}.{guess}")
    return [s for s in specs if any(_matches(s[0], s[2], pick) for pick in picks)]


def _matches(path: Path, name: str, pick: str) -> bool:
    return pick in name or pick in path.stem


def _is_elsewhere(part: str, notebooks: Path) -> bool:
    """Whether ``part`` is a notebook's path outside the suite's folder."""
    path = Path(part)
    return (
        path.suffix == ".ipynb" and path.is_file() and path.resolve().parent != notebooks.resolve()
    )


def _guess(name: str, known: Iterable[str]) -> str:
    near = nearest(name, known)
    return f" Did you mean {' or '.join(near)}?" if near else ""


def _writable(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise RunError(
            f"The results cannot be written to {str(out)!r} ({error.strerror}); name another folder."
        ) from error


def _exit_code(work: Callable[[], int]) -> int:
    """What ``work`` returns, or the code for what it raised, said in one sentence on stderr."""
    try:
        return work()
    except (SchedulerError, StoreError) as error:
        print(error, file=sys.stderr)
        return INFRASTRUCTURE
    except CasebookError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(
            f"The batch stopped because a file could not be handled ({error}); see to the disk and "
            "run again: what has ended is kept.",
            file=sys.stderr,
        )
        return INFRASTRUCTURE
