"""Real runs of tiny notebooks: every ending, records, the index. All in few batches, as each run costs seconds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from casebook.runs import batch, suite
from casebook.runs.execute import BatchStoppedError, execute
from casebook.runs.outcome import RunResult, State
from casebook.runs.processes import kill_tree
from casebook.runs.spec import RunSpec, repo_root

GOOD = """
import os, sys
from casebook.runs import verdict
assert os.getcwd() == root, os.getcwd()
print("python", sys.executable)
verdict.record("PASS", evidence=[f"tp is {tp}"], headline=f"It fits at TP {tp}.")
"""
PARAMETERS = 'root: str = ""\ntp: int = 4'


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "results"


def test_every_ending(make_notebook: Any, out: Path) -> None:
    specs = [
        RunSpec.of(
            make_notebook("good", "# It fits", GOOD, parameters=PARAMETERS),
            {"tp": 8, "root": str(repo_root())},
        ),
        RunSpec.of(make_notebook("raises", "1", "{}['k']", "never = 1")),
        RunSpec.of(make_notebook("dies", "import os", "os._exit(3)")),
        RunSpec.of(make_notebook("leaves", "import sys", "sys.exit(0)", "never = 1")),
        RunSpec.of(
            make_notebook(
                "fails",
                "from casebook.runs.verdict import record",
                "record('FAIL', headline='No.')",
            )
        ),
        RunSpec.of(make_notebook("in-r", "1", language="R")),
        RunSpec(make_notebook("misspelt", "1"), {"x": 1}),
    ]
    results = batch.run_batch(specs, out, progress=False)
    assert [(r.state, r.cell) for r in results] == [
        (State.OK, None),
        (State.CELL_ERROR, 2),
        (State.KERNEL_DIED, 2),
        (State.CELL_ERROR, 2),
        (State.VERDICT_FAIL, None),
        (State.NO_KERNEL, None),
        (State.BAD_PARAMETERS, None),
    ]
    good, raises, *_ = results
    assert good.verdict and good.verdict["headline"] == "It fits at TP 8."
    assert raises.error == "In [2] raised KeyError: 'k'"
    for result in results:
        record = json.loads(batch.record_path(result.spec, out).read_text())
        assert record["state"] == result.state

    assert good.output
    streams = _outputs(good.output, "stream")
    # This very interpreter, and no warning of the kernel's about its transport.
    assert [s["name"] for s in streams] == ["stdout"]
    assert "".join(streams[0]["text"]).strip() == f"python {sys.executable}"


def test_a_stopped_batch_leaves_no_process(make_notebook: Any, out: Path, tmp_path: Path) -> None:
    # A grandchild outside the kernel's process group and, since its parent exits, outside the tree.
    note = tmp_path / "pid"
    inner = (
        "import os, pathlib, threading\n"
        f"pathlib.Path({str(note)!r}).write_text(str(os.getpid()))\n"
        "threading.Event().wait()"
    )
    outer = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {inner!r}], start_new_session=True)"
    )
    start = (
        "import pathlib, subprocess, sys, threading\n"
        f"subprocess.run([sys.executable, '-c', {outer!r}], check=True)\n"
        f"while not (pathlib.Path({str(note)!r}).exists() and pathlib.Path({str(note)!r}).read_text()):\n"
        "    pass"
    )
    spec = RunSpec.of(make_notebook("hangs", start, "threading.Event().wait()"))
    stop = threading.Event()
    with pytest.raises(BatchStoppedError):
        execute(spec, out, stop=stop, on_cell=lambda cell, _: stop.set() if cell == 2 else None)
    assert not _alive(int(note.read_text()))


def test_a_hanging_notebook_is_stopped_at_its_limit(make_notebook: Any, out: Path) -> None:
    spec = RunSpec.of(make_notebook("waits", "import threading; threading.Event().wait()"))
    result = execute(spec, out, seconds=0.5)
    assert (result.state, result.cell) == (State.TIMEOUT, 1)
    assert result.error == "It was stopped after 0.5 s, its limit, in In [1]."


def test_a_runner_that_hangs_itself_is_killed(make_notebook: Any, out: Path) -> None:
    spec = RunSpec.of(make_notebook("slow", "1"))
    result = execute(spec, out, seconds=0.0, grace=0.0)
    assert result.state is State.TIMEOUT
    assert result.output is None


def test_suite_writes_an_index_and_skips_what_is_unchanged(
    make_notebook: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = make_notebook(
        "01-fits",
        "# Will it <fit>?",
        "from casebook.runs import verdict",
        "from IPython.display import HTML; HTML('<table><tr><td>1.5</td></tr></table>')",
        "import ipywidgets; ipywidgets.IntProgress()",
        "verdict.record('PASS', headline=f'At TP {tp} it fits.')",
        parameters="tp: int = 4",
    )
    make_notebook("02-broken", "# Broken", "1 / 0")
    folder = notebook.parent
    (folder / "runs.toml").write_text(
        '[[run]]\nnotebook = "01-fits"\n[[run]]\nnotebook = "01-fits.ipynb"\n'
        'name = "fits-wide"\nparameters = { tp = 8 }\n'
    )
    assert suite.run_suite(folder, out, progress=False) == 1
    index = (out / "index.html").read_text()
    assert str((out / "index.html").resolve()) in capsys.readouterr().out
    assert index.count('<article class="card') == 3
    assert "Will it &lt;fit&gt;?" in index
    assert "At TP 8 it fits." in index
    assert "In [1] raised ZeroDivisionError: division by zero" in index
    assert "a cell raised an error" in index

    pages = sorted((out / "html").glob("*.html"))
    assert len(pages) == 3
    for page in [out / "index.html", *pages]:
        text = page.read_text()
        links = re.findall(r'(?:href|src)="([^"#]+)"', text)
        assert links
        for link in links:
            assert (page.parent / link).is_file(), link
        # One script, the index's own, which its policy names by its digest.
        assert text.count("<script") == (page.name == "index.html")
        assert not re.search(r"@import|url\(|<link\b", text)
    fits = next(p for p in pages if "fits-wide" in p.name).read_text()
    assert '<details class="code">' in fits
    assert re.search(r'<div class="scroll">\s*<div class="output_html', fits)
    assert (
        "IntProgress"
        not in fits.split("<main>")[1].replace("ipywidgets", "", 1).split("</details>")[-1]
    )

    before = {p: p.stat().st_mtime_ns for p in (out / "notebooks").iterdir()}
    assert suite.run_suite(folder, out, only=["fits"], progress=False) == 0
    assert {p: p.stat().st_mtime_ns for p in (out / "notebooks").iterdir()} == before
    # The index still shows the run that was not asked for this time.
    assert (out / "index.html").read_text().count('<article class="card') == 3

    assert suite.run_suite(folder, out, only=["fits-wide"], force=True, progress=False) == 0
    changed = {p for p in before if p.stat().st_mtime_ns != before[p]}
    assert [p.name.rsplit("-", 1)[0] for p in changed] == ["fits-wide"]


@pytest.mark.parametrize(
    ("toml", "options", "words"),
    [
        ('[[run]]\nnotebook = "n"\nparameters = { tq = 8 }', {}, "no parameter 'tq'"),
        ('[[run]]\nnotebook = "m"', {}, "names the notebook 'm', which is not there"),
        ('[[run]]\nnotebook = "n"\nparams = {}', {}, "Entry 1 of runs.toml has params"),
        ("[[run]", {}, "runs.toml cannot be read"),
        ("", {"parameters": {"tp": "many"}}, "declared int and cannot be 'many'"),
        ("", {"only": ["nothing"]}, "No run is called 'nothing'; there are n."),
    ],
)
def test_bad_input_stops_before_anything_runs(
    make_notebook: Any,
    out: Path,
    capsys: pytest.CaptureFixture[str],
    toml: str,
    options: dict[str, Any],
    words: str,
) -> None:
    folder = make_notebook("n", "# N", "1", parameters="tp: int = 4").parent
    (folder / "runs.toml").write_text(toml)
    assert suite.run_suite(folder, out, progress=False, **options) == 2
    assert words in capsys.readouterr().err
    assert not (out / "notebooks").exists()


def test_a_folder_that_cannot_be_written(
    make_notebook: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_notebook("n", "# N", "1").parent
    blocked = tmp_path / "file"
    blocked.touch()
    assert suite.run_suite(folder, blocked / "results", progress=False) == suite.BAD_INPUT
    assert "cannot be written to" in capsys.readouterr().err


def test_one_batch_at_a_time_in_a_folder(
    make_notebook: Any, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_notebook("n", "# N", "1").parent
    with batch.sole_batch(out):
        assert suite.run_suite(folder, out, progress=False) == suite.BAD_INPUT
    assert "Another batch writes to" in capsys.readouterr().err
    assert not (out / "records").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB, where this user may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_loses_nothing(
    make_notebook: Any, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_notebook("01-small", "# S", "1")
    folder = make_notebook("02-large", "# L", "print('x' * 1_000_000)").parent
    options: dict[str, Any] = {"jobs": 1, "progress": False}
    assert suite.run_suite(folder, small_disk, **options) == suite.INFRASTRUCTURE
    assert "No space left on device" in capsys.readouterr().err
    (kept,) = (small_disk / "records").glob("*.json")
    before = kept.stat().st_mtime_ns
    assert json.loads(kept.read_text())["name"] == "01-small"

    command = ["mount", "-o", "remount,size=16m", str(small_disk)]
    subprocess.run(command, check=True)
    assert suite.run_suite(folder, small_disk, **options) == 0
    assert kept.stat().st_mtime_ns == before


def test_a_damaged_record_is_no_record(make_notebook: Any, out: Path) -> None:
    spec = RunSpec.of(make_notebook("n", "1"))
    output = out / "notebooks" / "n.ipynb"
    output.parent.mkdir(parents=True)
    output.write_text("{}")
    path = batch.record_path(spec, out)
    path.parent.mkdir()
    good = RunResult(spec, State.OK, output=output).to_json()
    path.write_text(json.dumps(good))
    assert batch.recorded(spec, out)
    for damaged in (good | {"format": 99}, good | {"state": "fine"}, good | {"key": "0"}, [1]):
        path.write_text(json.dumps(damaged))
        assert batch.recorded(spec, out) is None
    path.write_text(json.dumps(good))
    output.unlink()
    assert batch.recorded(spec, out) is None


def test_kill_tree_takes_the_children() -> None:
    code = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import threading; threading.Event().wait()']); print(p.pid, flush=True); p.wait()"
    root = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert root.stdout
    child = int(root.stdout.readline())
    kill_tree(root.pid)
    root.wait()
    root.stdout.close()
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _outputs(notebook: Path, kind: str) -> list[dict[str, Any]]:
    cells = json.loads(notebook.read_text())["cells"]
    return [o for c in cells for o in c.get("outputs", []) if o["output_type"] == kind]
