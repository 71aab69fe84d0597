"""A grid of 24 notebook runs: how near to ideal on two cores, and what a kill -9 of the batch costs.

    .venv/bin/python benchmarks/runs_grid.py wall          # one at a time, then two: the ratio to half the time
    .venv/bin/python benchmarks/runs_grid.py kill          # 20 kills at random moments, each followed by a resume

The notebook of each run works for about a second and notes its start and its end. Run it on a quiet
machine, in a checkout that nobody edits: a run's key holds the state of casebook's code, so an edit
between a kill and its resume makes every run a new one.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from casebook.runs import RunSpec, State, manifest, run_batch

RUNS = 24
PARAMETERS = 'n: int = 0  # which run\nroom: str = ""  # where it notes\nbusy: float = 1.0  # seconds of work'
NOTE = """
import time
def note(what):
    with open(f"{room}/notes", "a") as file:
        file.write(f"{what} {n}\\n")
note("began")
"""
WORK = "end = time.process_time() + busy\nwhile time.process_time() < end:\n    sum(range(10_000))"
END = (
    'from casebook.runs.verdict import record\nnote("ended")\nrecord("PASS", headline=f"Run {n}.")'
)


def main() -> int:
    """Measure what was asked for; the exit code is 1 if a bound is broken."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["wall", "kill"])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--busy", type=float, default=1.0, help="seconds of work in each run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="casebook-grid-") as folder:
        specs = _specs(Path(folder), given.busy)
        if given.what == "wall":
            return _wall(specs, Path(folder))
        return _kill(specs, Path(folder), given.kills, random.Random(given.seed))


def _specs(folder: Path, busy: float) -> list[RunSpec]:
    cells = [
        new_markdown_cell("# A run that notes itself"),
        new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}),
        *map(new_code_cell, (NOTE, WORK, END)),
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    path = folder / "grid.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return [RunSpec.of(path, {"n": n, "room": str(folder), "busy": busy}) for n in range(RUNS)]


def _wall(specs: list[RunSpec], folder: Path) -> int:
    """The time of the batch on two cores against half the time of the same runs one by one."""
    taken = {}
    for jobs in (1, 2):
        clock = time.monotonic()
        results = run_batch(specs, folder / f"jobs-{jobs}", jobs, progress=False)
        taken[jobs] = time.monotonic() - clock
        assert all(r.state is State.OK for r in results)
        print(f"{RUNS} runs, {jobs} at a time: {taken[jobs]:.1f} s", flush=True)
    ratio = taken[2] / (taken[1] / 2)
    print(f"{ratio:.2f} times the ideal (half of one by one)")
    return int(ratio > 1.3)


def _kill(specs: list[RunSpec], folder: Path, kills: int, chance: random.Random) -> int:
    """Kill the batch at a random moment and resume it, again and again."""
    plan, notes = folder / "plan.jsonl", folder / "notes"
    manifest.write(plan, specs, {})
    clock = time.monotonic()
    _batch(plan, folder / "whole").wait()
    whole = time.monotonic() - clock
    print(f"the batch takes {whole:.1f} s; killed at a random moment of it:", flush=True)
    broken = 0
    for number in range(1, kills + 1):
        out = folder / "killed"
        shutil.rmtree(out, ignore_errors=True)
        notes.unlink()
        moment = chance.uniform(0, whole)
        batch = _batch(plan, out)
        try:
            batch.wait(moment)
        except subprocess.TimeoutExpired:
            batch.send_signal(signal.SIGKILL)
            batch.wait()
        ended = len(list((out / "records").glob("*.json")))
        code = _batch(plan, out).wait()
        lines = manifest.read(out / manifest.MANIFEST)
        began = Counter(line for line in notes.read_text().splitlines() if "began" in line)
        repeated = sum(began.values()) - RUNS
        there = len({line["key"] for line in lines if line["state"] == "ok"})
        good = code == 0 and there == len(lines) == RUNS and len(began) == RUNS and repeated <= 2
        broken += not good
        print(
            f"{number:3d}  killed after {moment:5.1f} s with {ended:2d} recorded; after resuming "
            f"{there} of {len(lines)} ok, {repeated} begun twice{'' if good else '   BROKEN'}",
            flush=True,
        )
    print(f"{kills - broken} of {kills} times nothing was lost and at most two runs were repeated")
    return int(broken > 0)


def _batch(plan: Path, out: Path) -> subprocess.Popen[bytes]:
    # A process of its own, killed alone: its runs must end by themselves.
    command = [sys.executable, "-m", "casebook.cli", "run", "--manifest", str(plan)]
    quiet = subprocess.DEVNULL
    return subprocess.Popen([*command, "--out", str(out)], stdout=quiet, stderr=quiet)


if __name__ == "__main__":
    sys.exit(main())
