"""The whole suite: which notebooks with which parameters, run as one batch, and its index.

``notebooks/runs.toml`` lists runs that the suite makes of a notebook; a notebook that it does not
name runs once, with its defaults::

    [[run]]
    notebook = "02-will-it-fit"
    name = "will-it-fit-h200"            # optional
    parameters = { gpu = "H200", tp = 2 }
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from casebook.errors import CasebookError, RunError, nearest
from casebook.runs.batch import recorded, run_batch
from casebook.runs.execute import DEFAULT_SECONDS
from casebook.runs.outcome import batch_exit_code
from casebook.runs.site import write_site
from casebook.runs.spec import RunSpec, repo_root

RUNS_FILE = "runs.toml"
BAD_INPUT, INFRASTRUCTURE = 2, 3


def run_suite(
    notebooks: Path | None = None,
    out: Path = Path("results"),
    jobs: int = 2,
    force: bool = False,
    only: Sequence[str] = (),
    parameters: dict[str, Any] | None = None,
    *,
    seconds: float = DEFAULT_SECONDS,
    progress: bool = True,
) -> int:
    """Run the notebooks in a folder, write ``out/index.html``, print where it is.

    ``only`` picks notebooks by (part of) their names; ``parameters`` are given to each that is
    picked, over what ``runs.toml`` says, and may be text, read as the declared type says. Nothing
    runs if any of this is wrong. The exit code: 0 all ok, 1 a notebook failed or its check did,
    2 bad input, 3 only the surroundings failed (time, memory, kernel, disk).
    """
    try:
        planned = plan(notebooks or repo_root() / "notebooks")
        chosen = _overridden(_chosen(planned, only), parameters or {})
        _writable(out)
    except CasebookError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    try:
        results = run_batch(chosen, out, jobs, force=force, seconds=seconds, progress=progress)
        # The index keeps what earlier batches found and still holds, in the suite's order.
        new = {r.spec.key: r for r in results}
        old = [new.pop(s.key, None) or recorded(s, out) for s in planned]
        index = write_site([*filter(None, old), *new.values()], out)
    except OSError as error:
        print(
            f"The batch stopped because a file could not be handled ({error}); see to the disk and "
            "run again: what has ended is kept.",
            file=sys.stderr,
        )
        return INFRASTRUCTURE
    states = [r.state for r in results]
    failed = sum(s.exit_code != 0 for s in states)
    print(f"{len(states) - failed} of {len(states)} runs ok. Read them: {index.resolve()}")
    return batch_exit_code(states)


def plan(notebooks: Path) -> list[RunSpec]:
    """All runs of the suite, checked, in the order of the notebooks' names."""
    found = sorted(p for p in notebooks.glob("*.ipynb") if not p.name.startswith("."))
    if not found:
        raise RunError(
            f"There is no notebook in {str(notebooks)!r}; name the folder that holds them."
        )
    asked = _read_runs(notebooks / RUNS_FILE, {p.stem: p for p in found})
    specs = []
    for path in found:
        entries = asked.get(path.stem, [{}])
        specs += [RunSpec.of(path, e.get("parameters"), e.get("name", "")) for e in entries]
    return specs


def _read_runs(path: Path, stems: dict[str, Path]) -> dict[str, list[dict[str, Any]]]:
    """The entries of ``runs.toml`` by notebook."""
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path.name} cannot be read: {error}") from error
    asked: dict[str, list[dict[str, Any]]] = {}
    entries = table.get("run", [])
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries], 1):
        where = f"Entry {number} of {path.name}"
        if not isinstance(entry, dict) or not isinstance(entry.get("notebook"), str):
            raise RunError(f'{where} must be a [[run]] table with notebook = "NAME".')
        if unknown := entry.keys() - {"notebook", "parameters", "name"}:
            raise RunError(
                f"{where} has {', '.join(sorted(unknown))}; it takes notebook, parameters and name."
            )
        if not isinstance(entry.get("parameters", {}), dict):
            raise RunError(f"{where}: parameters must be a table, as in {{ tp = 2 }}.")
        stem = entry["notebook"].removesuffix(".ipynb")
        if stem not in stems:
            near = nearest(stem, stems)
            guess = f" Did you mean {' or '.join(near)}?" if near else ""
            raise RunError(f"{where} names the notebook {stem!r}, which is not there.{guess}")
        asked.setdefault(stem, []).append(entry)
    return asked


def _chosen(specs: list[RunSpec], only: Sequence[str]) -> list[RunSpec]:
    if not only:
        return specs
    picks = [part.removesuffix(".ipynb").rsplit("/", 1)[-1] for part in only]
    for pick in picks:
        if not any(_matches(spec, pick) for spec in specs):
            names = list(dict.fromkeys(spec.label for spec in specs))
            near = nearest(pick, names)
            guess = f" Did you mean {' or '.join(near)}?" if near else ""
            raise RunError(f"No run is called {pick!r}; there are {', '.join(names)}.{guess}")
    return [spec for spec in specs if any(_matches(spec, pick) for pick in picks)]


def _matches(spec: RunSpec, pick: str) -> bool:
    return pick in spec.label or pick in spec.notebook.stem


def _overridden(specs: list[RunSpec], parameters: dict[str, Any]) -> list[RunSpec]:
    if not parameters:
        return specs
    return [RunSpec.from_text(s.notebook, s.parameters | parameters, s.name) for s in specs]


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
