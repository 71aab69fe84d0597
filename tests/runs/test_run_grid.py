"""Grids from a command line and from files of runs: which runs they mean, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from casebook.errors import RunError
from casebook.runs import grid, manifest, suite
from casebook.runs.commands import run


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("B200,H200", ["B200", "H200"]),
        ("0.5.11", ["0.5.11"]),
        ("", [""]),
        ('"0.5.9,0.5.11"', ["0.5.9,0.5.11"]),
        ('"a,b", c', ["a,b", "c"]),
        ('["a","b"],[]', ['["a","b"]', "[]"]),
        ('{"x": "],"},1', ['{"x": "],"}', "1"]),
        ("it's,fine", ["it's", "fine"]),
    ],
)
def test_commas_part_values_unless_quoted_or_bracketed(text: str, values: list[str]) -> None:
    assert grid.split_values(text) == values


def test_a_grid_has_each_combination_once() -> None:
    found = list(grid.points({"gpu": ["B200", "H200"], "tp": [1, 2]}))
    assert found == [
        {"gpu": "B200", "tp": 1},
        {"gpu": "B200", "tp": 2},
        {"gpu": "H200", "tp": 1},
        {"gpu": "H200", "tp": 2},
    ]
    assert list(grid.points({})) == [{}]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["gpu"], "sets no parameter"),
        (["=3"], "sets no parameter"),
        (["gpu=1", "gpu=2"], "'gpu' is given twice"),
    ],
)
def test_assignments_that_mean_nothing(texts: list[str], words: str) -> None:
    with pytest.raises(RunError, match=words):
        grid.read_assignments(texts)


@pytest.mark.parametrize("suffix", ["toml", "yaml"])
def test_a_file_of_runs(make_notebook: Any, tmp_path: Path, suffix: str) -> None:
    folder = make_notebook(
        "02_fits", "# F", "1", parameters='tp: int = 4\ngpu: str = "B200"'
    ).parent
    make_notebook("03_other", "# O", "1")
    texts = {
        "toml": '[[run]]\nnotebook = "02"\nname = "wide"\nparameters = { gpu = "H200" }\n'
        "grid = { tp = [2, 8] }\n",
        "yaml": "- notebook: 02_fits.ipynb\n  name: wide\n  parameters: {gpu: H200}\n"
        "  grid: {tp: [2, 8]}\n",
    }
    file = tmp_path / f"runs.{suffix}"
    file.write_text(texts[suffix])
    specs = suite.plan(folder, runs=file)
    assert [(s.label, s.parameters) for s in specs] == [
        ("wide", {"gpu": "H200", "tp": 2}),
        ("wide", {"gpu": "H200", "tp": 8}),
    ]
    # In the suite's own place the file says how often its notebooks run, and the others run too.
    (folder / suite.RUNS_FILE).write_text(texts["toml"])
    assert [s.label for s in suite.plan(folder)] == ["wide", "wide", "03_other"]


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        ("- notebook: n\n  grid: {tp: 2}", "Entry 1 of runs.yaml: grid must be a table of lists"),
        ("- notebook: n\n  grid: {tp: []}", "grid must be a table of lists"),
        ("- notebook: n\n  grid: {tp: [2]}\n  parameters: {tp: 1}", "sets 'tp' in parameters and"),
        ("- notebook: n\n  parameters: {tp: many}", "declared int and cannot be 'many'"),
        ("- notebook: n\n- 3", "Entry 2 of runs.yaml must be a table"),
        ("- {", "runs.yaml cannot be read"),
        ("- notebook: m", "names the notebook 'm', which is not there"),
    ],
)
def test_a_wrong_file_of_runs(make_notebook: Any, tmp_path: Path, yaml: str, words: str) -> None:
    folder = make_notebook("n", "# N", "1", parameters="tp: int = 4").parent
    file = tmp_path / "runs.yaml"
    file.write_text(yaml)
    with pytest.raises(RunError, match=words):
        suite.plan(folder, runs=file)


def test_a_parameter_without_a_default_must_be_given(make_notebook: Any) -> None:
    notebook = make_notebook("n", "# N", "1", parameters="release: str\ntp: int = 1")
    with pytest.raises(RunError, match=r"needs a value for its parameter 'release' \(str\)"):
        suite.plan(notebook.parent)
    (spec,) = suite.plan(notebook.parent, grid={"release": ["0.5.11"]})
    assert spec.parameters == {"release": "0.5.11"}


def test_the_command_line_plans_a_grid_with_typed_values(
    make_notebook: Any, tmp_path: Path
) -> None:
    # A notebook outside the suite's folder, by its path.
    path = make_notebook("mine", "# M", "1", parameters='tp: int = 4\nname: str = ""')
    target = tmp_path / "m.jsonl"
    given = [str(path), "-p", "tp=2,8", "-p", "name=1,2", "--plan", str(target)]
    answer = CliRunner().invoke(run, given)
    assert answer.exit_code == 0, answer.output
    lines = manifest.read(target)
    assert [each["parameters"] for each in lines] == [
        {"tp": 2, "name": "1"},
        {"tp": 2, "name": "2"},
        {"tp": 8, "name": "1"},
        {"tp": 8, "name": "2"},
    ]
    assert len({each["key"] for each in lines}) == 4
    assert not any(each["state"] for each in lines)

    misspelt = CliRunner().invoke(run, [str(path), "-p", "tpp=2"])
    assert misspelt.exit_code == 2
    assert "Did you mean tp?" in misspelt.output
