"""The same runs on a real Dask scheduler with two worker processes, some of which are killed."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from loopback_cluster import Cluster

from casebook.runs import manifest, suite
from casebook.runs.batch import run_batch
from casebook.runs.outcome import State
from casebook.runs.spec import RunSpec

pytest.importorskip("distributed")

PARAMETERS = 'n: int = 0\nroom: str = ""\nvictim: int = 0'
# What a run notes of itself, in one write each, so that runs do not mix their lines.
NOTE = """
import os, signal, threading, psutil
from pathlib import Path
from casebook.runs import verdict
def note(what):
    with open(Path(room) / "notes", "a") as file:
        file.write(f"{what} {n}\\n")
note("began")
"""
# Run 3 kills the worker that it runs under, once, and then waits for its own end.
KILL = """
mark = Path(room) / "killed"
if n == 3 and not mark.exists():
    mark.touch()
    doomed = victim or psutil.Process(os.getppid()).ppid()
    os.kill(doomed, signal.SIGKILL)
    threading.Event().wait()
"""
END = 'note("ended")\nverdict.record("PASS", headline=f"Run {n} came to its end.")'


@pytest.fixture
def notebook(make_notebook: Any) -> Path:
    path: Path = make_notebook("n", "# N", NOTE, KILL, END, parameters=PARAMETERS)
    return path


def _specs(notebook: Path, room: Path, count: int, victim: int = 0) -> list[RunSpec]:
    given = {"room": str(room), "victim": victim}
    return [RunSpec.of(notebook, given | {"n": n}) for n in range(count)]


def _notes(room: Path) -> Counter[str]:
    return Counter((room / "notes").read_text().splitlines())


@pytest.mark.slow
def test_a_killed_worker_loses_nothing_and_repeats_nothing(
    cluster: Cluster, notebook: Path, tmp_path: Path
) -> None:
    out = tmp_path / "results"
    specs = _specs(notebook, tmp_path, 8)
    results = run_batch(specs, out, scheduler=cluster.address, progress=False)
    assert [r.state for r in results] == [State.OK] * 8
    assert sorted(p.poll() is None for p in cluster.workers) == [False, True]
    assert {p.returncode for p in cluster.workers} == {None, -signal.SIGKILL}
    # The run that killed its worker began twice; each ended once.
    began = {f"began {n}": 1 + (n == 3) for n in range(8)}
    assert _notes(tmp_path) == Counter(began | {f"ended {n}": 1 for n in range(8)})
    lines = manifest.read(out / manifest.MANIFEST)
    assert [line["key"] for line in lines] == [spec.key for spec in specs]
    assert all(line["state"] == "ok" for line in lines)
    assert len(list((out / "records").iterdir())) == 8
    # With all recorded, no worker is asked again.
    assert run_batch(specs, out, scheduler=cluster.address, progress=False)
    assert _notes(tmp_path)["began 0"] == 1


@pytest.mark.slow
def test_a_dead_scheduler_loses_nothing(
    cluster: Cluster, notebook: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, plan = tmp_path / "results", tmp_path / "m.jsonl"
    manifest.write(plan, _specs(notebook, tmp_path, 6, cluster.scheduler.pid), {})
    options: dict[str, Any] = {"out": out, "planned": plan, "progress": False}
    code = suite.run_suite(**options, scheduler=cluster.address)
    said = capsys.readouterr().err
    assert code == suite.INFRASTRUCTURE, said
    assert f"The Dask scheduler at '{cluster.address}' went away" in said
    cluster.close()
    assert suite.run_suite(**options, scheduler=cluster.address) == suite.INFRASTRUCTURE
    assert "No Dask scheduler answers at" in capsys.readouterr().err

    before = {p: p.stat().st_mtime_ns for p in (out / "records").iterdir()}
    assert before
    # Asking a scheduler that does not answer has not touched what the first batch left.
    lines = manifest.read(out / manifest.MANIFEST)
    assert sum(line["state"] == "ok" for line in lines) >= 1
    assert suite.run_suite(**options) == 0
    assert {p: p.stat().st_mtime_ns for p in before} == before
    lines = manifest.read(out / manifest.MANIFEST)
    assert [line["state"] for line in lines] == ["ok"] * 6
