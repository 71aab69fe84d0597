"""Parameters are checked against the notebook before anything runs; the key names what decides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casebook.errors import RunError
from casebook.runs.declared import Parameter
from casebook.runs.spec import RunSpec

CELL = """
release: str = "0.5.11"  # a release; "#" is no comment here: "a#b"
tp: int = 4  # GPUs
share: float | None = None  # of memory
flags: list[str] = [
    "--a",
]
mode: Literal["auto", "extra_buffer"] = "auto"
deep: bool = False
gib = 80.0
"""


@pytest.fixture
def notebook(make_notebook: Any) -> Path:
    return make_notebook("n", "# A title", "print(tp)", parameters=CELL)


@pytest.mark.parametrize(
    "parameters",
    [
        {"tp": 8, "release": "0.5.12"},
        {"share": None},
        {"share": 0.8},
        {"share": 1},
        {"flags": ["--b"]},
        {"mode": "extra_buffer"},
        {"deep": True},
        {"gib": 141},
    ],
)
def test_right_values_pass(notebook: Path, parameters: dict[str, Any]) -> None:
    assert RunSpec.of(notebook, parameters).parameters == parameters


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"relaese": "0.5.12"}, "no parameter 'relaese'.*Did you mean release"),
        ({"tp": "8"}, "'tp' .* is declared int and cannot be '8', which is str"),
        ({"tp": True}, "declared int"),
        ({"tp": 8.0}, "declared int"),
        ({"release": 5}, "declared str"),
        ({"flags": "--b"}, "declared list"),
        ({"flags": [1]}, "declared list"),
        ({"mode": "none"}, "declared Literal"),
        ({"deep": 1}, "declared bool"),
        ({"gib": "many"}, "declared float"),
        ({"tp": Path("x")}, "cannot take a"),
    ],
)
def test_wrong_names_and_types_are_refused(
    notebook: Path, parameters: dict[str, Any], words: str
) -> None:
    with pytest.raises(RunError, match=words):
        RunSpec.of(notebook, parameters)


def test_a_notebook_without_a_parameters_cell_takes_none(make_notebook: Any) -> None:
    with pytest.raises(RunError, match="no cell tagged 'parameters'"):
        RunSpec.of(make_notebook("bare", "1"), {"tp": 1})


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("str", "123", "123"),
        ("int", "08", 8),
        ("float", "0.85", 0.85),
        ("bool", "true", True),
        ("bool", "no", False),
        ("int | None", "null", None),
        ("list[str]", '["x"]', ["x"]),
        ("int", "eight", "eight"),
    ],
)
def test_shell_text_is_read_as_declared(kind: str, text: str, value: Any) -> None:
    assert Parameter("p", kind, "None").from_text(text) == value


def test_no_notebook_and_no_json_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no readable notebook"):
        RunSpec.of(tmp_path / "absent.ipynb")
    (tmp_path / "x.ipynb").write_text("{}")
    with pytest.raises(RunError, match="not a notebook of format 4"):
        RunSpec.of(tmp_path / "x.ipynb")


def test_key_follows_what_decides_the_outcome(notebook: Path, tmp_path: Path) -> None:
    base = RunSpec.of(notebook, {"tp": 8, "deep": True})
    assert base.key == RunSpec.of(notebook, {"deep": True, "tp": 8}).key
    assert base.key != RunSpec.of(notebook, {"tp": 4, "deep": True}).key

    saved = json.loads(notebook.read_text())
    saved["cells"][-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "8"}]
    notebook.write_text(json.dumps(saved))
    assert RunSpec.of(notebook, {"tp": 8, "deep": True}).key == base.key
    saved["cells"][-1]["source"] = "print(tp + 1)"
    notebook.write_text(json.dumps(saved))
    assert RunSpec.of(notebook, {"tp": 8, "deep": True}).key != base.key

    script = tmp_path / "launch.sh"
    script.write_text("a")
    before = RunSpec.of(notebook, {"release": str(script)}).key
    script.write_text("b")
    assert RunSpec.of(notebook, {"release": str(script)}).key != before


def test_title_and_slug(notebook: Path) -> None:
    spec = RunSpec.of(notebook, name="on 2 x H200/é")
    assert spec.title == "A title"
    assert spec.slug == f"on-2-x-H200-{spec.key[:8]}"
