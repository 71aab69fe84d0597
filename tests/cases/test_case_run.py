"""Cases on real releases: every case of data/cases is as its file says, and the command line's codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casebook.cases import as_record, load_cases, named, run_cases, state_table
from casebook.cases.run import CellState, Plan, run_case
from casebook.cli import main

# Each release starts a child per GPU. `casebook case run` asks all of them; where it would be slow, the
# suite asks those of the GPU that most cases are about.
QUICK = ["0.5.11"]
SLOW = ["0.5.9", "0.5.15.post1", "0.5.23"]


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["case", *words])
    out, err = capfd.readouterr()
    assert isinstance(stop.value.code, int)
    return stop.value.code, out, err


@pytest.mark.capsule
@pytest.mark.parametrize(
    "release", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_every_case_is_as_its_file_says(release: str) -> None:
    cases = [case for case in named([]) if release in QUICK or case.gpu == "B200"]
    cells = run_cases(cases, [release], progress=False)
    assert [f"{c.case.name}: {c.state}: {c.detail}" for c in cells if not c.as_stated] == []
    assert sum(cell.state is CellState.REPRODUCES for cell in cells) >= 20


@pytest.mark.capsule
def test_the_incident_and_its_mended_script() -> None:
    case = load_cases()["incident-flag-lost"]
    cell = run_case(case, "0.5.11")
    assert cell.state is CellState.REPRODUCES
    assert "comment-in-continuation" in cell.trail
    assert "auto → no_buffer  at server_args.py:1082" in cell.trail
    assert case.launch.script is not None
    lines = case.launch.script.splitlines(keepends=True)
    mended = "".join(line for line in lines if "# extra_buffer" not in line)
    launch = case.launch.model_copy(update={"script": mended})
    cell = run_case(case.model_copy(update={"launch": launch}), "0.5.11")
    assert cell.state is CellState.MENDED


def test_a_case_of_the_script_alone_needs_no_child_and_a_plan_is_injected() -> None:
    assert run_case(load_cases()["crlf-line-ends"], "0.5.11").state is CellState.REPRODUCES
    case = load_cases()["kimi-k3-weights-do-not-fit"]
    cell = run_case(case, "0.5.23", planner=None)
    assert (cell.state, cell.detail) == (CellState.NOT_APPLICABLE, "memory plan missing.")
    assert cell.as_stated
    cell = run_case(case, "0.5.23", planner=lambda *_, **__: Plan(False, "GPUs are 9 GB short."))
    assert (cell.state, cell.detail) == (CellState.REPRODUCES, "GPUs are 9 GB short.")
    cell = run_case(case, "0.5.23", planner=lambda *_, **__: Plan(None, "No rule for it."))
    assert (cell.state, cell.detail) == (CellState.NOT_APPLICABLE, "No rule for it.")
    assert not cell.as_stated


@pytest.mark.capsule
def test_the_table_and_the_record(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "cases.json"
    names = ("page-size-one-for-no-buffer", "crlf-line-ends")
    code, printed, _ = run(capfd, "run", *names, "--releases", "0.5.11", "--json", str(out))
    assert code == 0
    assert "2 reproduces, 0 mended, 0 not applicable." in printed
    record = json.loads(out.read_text("utf-8"))
    assert [entry["name"] for entry in record] == list(names)
    assert {"name", "title", "source", "cause", "mend", "cells"} <= set(record[0])
    (cell,) = record[0]["cells"]
    assert (cell["release"], cell["state"]) == ("0.5.11", "reproduces")
    assert "server_args.py:2427" in cell["detail"]
    assert "64 → 1" in cell["trail"]


@pytest.mark.capsule
def test_a_cell_that_is_not_as_stated(
    case_file: Path, right: str, capfd: pytest.CaptureFixture[str]
) -> None:
    case_file.write_text(right.replace("ends_as = 1", "ends_as = 7"), encoding="utf-8")
    code, printed, _ = run(capfd, "run", str(case_file), "--releases", "0.5.11")
    assert code == 1
    assert "mended !" in printed
    assert "small on 0.5.11: mended (the file says reproduces). page_size ends as 1" in printed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "no-such-case"], "Unknown case 'no-such-case'"),
        (["run", "--releases", "9.9"], "Unknown SGLang release '9.9'"),
        (["show", "no-such-case"], "Unknown case 'no-such-case'"),
        (["run", "crlf-line-ends", "--jobs", "0"], "is not in the range"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    code, out, err = run(capfd, *words)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        (
            "Qwen/Qwen3.6-27B",
            "Qwen/Nope",
            "The case small cannot be asked on 0.5.11: Unknown model",
        ),
        (
            'command = "',
            'script = "echo ',
            "cannot be asked on 0.5.11: its script starts no SGLang",
        ),
    ],
)
def test_a_case_that_cannot_be_asked_is_named(
    case_file: Path,
    right: str,
    capfd: pytest.CaptureFixture[str],
    old: str,
    new: str,
    sentence: str,
) -> None:
    case_file.write_text(right.replace(old, new), encoding="utf-8")
    code, _, err = run(capfd, "run", str(case_file), "--releases", "0.5.11")
    assert code == 2
    assert sentence in err


def test_list_and_show(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "list")
    assert code == 0
    assert "incident-flag-lost" in out
    code, out, _ = run(capfd, "show", "crlf-line-ends", "0.5.11")
    assert code == 0
    assert "On SGLang 0.5.11: REPRODUCES." in out
    assert "crlf-line-ends" in out


def test_the_tables_of_cells() -> None:
    cases = [load_cases()[name] for name in ("crlf-line-ends", "missing-backslash-after-json")]
    cells = run_cases(cases, ["0.5.11", "0.5.9"], progress=False)
    frame = state_table(cells)
    assert list(frame.columns) == ["0.5.11", "0.5.9"]
    assert set(frame.to_numpy().ravel()) == {"reproduces"}
    assert [len(entry["cells"]) for entry in as_record(cells)] == [2, 2]
