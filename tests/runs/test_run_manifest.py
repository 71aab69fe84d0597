"""A manifest's line is enough for its run: alone, in any order, and gathered afterwards."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from papermill.iorw import papermill_io

from casebook.errors import RunError, StoreError
from casebook.runs import batch, manifest, suite
from casebook.runs.batch import run_batch
from casebook.runs.outcome import State
from casebook.runs.spec import RunSpec
from casebook.runs.store import Store

# A folder and not the file itself: what a named file holds is part of a run's key.
NOTE = "with open(room + '/ran', 'a') as f: f.write(f'{n}\\n')"
CHECK = "from casebook.runs.verdict import record; record('FAIL' if n == 2 else 'PASS', evidence='\\x00')"


@pytest.fixture
def planned(make_notebook: Any, tmp_path: Path) -> Path:
    """A manifest of three runs, the third of which ends in a FAIL; each notes that it ran."""
    notebook = make_notebook("n", "# N", NOTE, CHECK, parameters='n: int = 0\nroom: str = ""')
    target = tmp_path / "m.jsonl"
    code = suite.run_suite(
        notebook.parent,
        parameters={"room": str(tmp_path)},
        grid={"n": [0, 1, 2]},
        plan_to=target,
    )
    assert code == 0
    return target


def test_lines_run_alone_and_are_gathered(planned: Path, tmp_path: Path) -> None:
    out = tmp_path / "results"
    assert suite.run_index(planned, 2, out) == 1
    assert suite.run_index(planned, 0, out) == 0
    assert suite.run_index(planned, 0, out) == 0  # has a record: not run again
    assert not (out / "index.html").exists()
    assert suite.run_suite(out=out, planned=planned, progress=False) == 1
    assert (tmp_path / "ran").read_text().split() == ["2", "0", "1"]

    lines = manifest.read(out / manifest.MANIFEST)
    assert [(line["index"], line["state"]) for line in lines] == [
        (0, "ok"),
        (1, "ok"),
        (2, "verdict_fail"),
    ]
    rows = list(csv.DictReader((out / "results.csv").open()))
    assert [(r["parameter n"], r["verdict"]) for r in rows] == [
        ("0", "PASS"),
        ("1", "PASS"),
        ("2", "FAIL"),
    ]
    xml = ElementTree.parse(out / "junit.xml").getroot()
    assert len(xml.findall(".//testcase")) == 3
    assert [node.get("type") for node in xml.findall(".//failure")] == ["verdict_fail"]


@pytest.mark.parametrize(
    ("index", "text", "words"),
    [
        (3, None, "has 3 lines, so the index is 0 to 2, not 3"),
        (0, "{}\n", "Line 1 of m.jsonl is no run"),
        (0, "not json\n", "Line 1 of m.jsonl is no run"),
    ],
)
def test_a_wrong_index_or_manifest(
    planned: Path, tmp_path: Path, capsys: Any, index: int, text: str | None, words: str
) -> None:
    if text is not None:
        planned.write_text(text)
    assert suite.run_index(planned, index, tmp_path / "results") == 2
    assert words in capsys.readouterr().err


def test_a_line_of_another_state_of_the_code_is_refused(planned: Path, tmp_path: Path) -> None:
    line = manifest.pick(planned, 0)
    with pytest.raises(RunError, match="planned with another state"):
        manifest.spec_of(line | {"key": "0" * 64})
    missing = tmp_path / "absent.jsonl"
    assert suite.run_suite(planned=missing, out=tmp_path / "results") == 2


class _Bucket:
    """A place that papermill writes and reads, in memory."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def write(self, text: str, path: str) -> None:
        if "denied" in path:
            raise PermissionError(path)
        self.files[path] = text

    def read(self, path: str) -> str:
        return self.files[path]


@pytest.fixture
def bucket() -> Any:
    made = _Bucket()
    papermill_io.register("mem://", made)
    yield made
    papermill_io._handlers = [h for h in papermill_io._handlers if h[0] != "mem://"]


def test_runs_leave_their_files_in_a_bucket_and_a_batch_fetches_them(
    planned: Path, tmp_path: Path, bucket: _Bucket
) -> None:
    out, store = tmp_path / "results", "mem://team/runs"
    assert suite.run_index(planned, 1, tmp_path / "unused", store=store) == 0
    assert not (tmp_path / "unused").exists()
    specs = [manifest.spec_of(line) for line in manifest.read(planned)]
    results = run_batch(specs, out, store=store, progress=False)
    assert [r.state for r in results] == [State.OK, State.OK, State.VERDICT_FAIL]
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1", "2"]
    for spec in specs:
        assert f"{store}/records/{spec.key}.json" in bucket.files
        assert batch.recorded(spec, out)
        assert (out / "notebooks" / f"{spec.slug}.ipynb").is_file()
    # Nothing runs again, whether the record is here or only in the bucket.
    batch.record_path(specs[0], out).unlink()
    run_batch(specs, out, store=store, progress=False)
    assert len((tmp_path / "ran").read_text().split()) == 3


def test_a_bucket_that_cannot_be_written(
    planned: Path, tmp_path: Path, bucket: Any, capsys: Any
) -> None:
    del bucket
    code = suite.run_suite(
        out=tmp_path / "results", planned=planned, store="mem://denied", progress=False
    )
    assert code == suite.INFRASTRUCTURE
    assert "could not be written (PermissionError" in capsys.readouterr().err
    with pytest.raises(StoreError):
        Store.of("mem://denied").write_record(
            batch.RunResult(RunSpec.of(Path(manifest.pick(planned, 0)["notebook"])), State.OK)
        )


def test_infrastructure_faults_are_tried_again_and_failed_cells_are_not(
    make_notebook: Any, tmp_path: Path
) -> None:
    # The first kernel dies, the second finds the trace of the first.
    dies_once = (
        "import os, pathlib\np = pathlib.Path(trace)\np.exists() or (p.touch(), os._exit(9))"
    )
    raises = "open(trace, 'a').write('x'); 1 / 0"
    given = 'trace: str = ""'
    specs = [
        RunSpec.of(
            make_notebook("dies", "# D", dies_once, parameters=given), {"trace": f"{tmp_path}/a"}
        ),
        RunSpec.of(
            make_notebook("raises", "# R", raises, parameters=given), {"trace": f"{tmp_path}/b"}
        ),
        RunSpec.of(make_notebook("dead", "# X", "import os; os._exit(9)")),
    ]
    results = run_batch(specs, tmp_path / "results", progress=False)
    assert [(r.state, r.attempts) for r in results] == [
        (State.OK, 2),
        (State.CELL_ERROR, 1),
        (State.KERNEL_DIED, 2),
    ]
    assert (tmp_path / "b").read_text() == "x"
    record = json.loads(batch.record_path(specs[0], tmp_path / "results").read_text())
    assert record["attempts"] == 2
