"""Every notebook has the suite's form, so that a person, papermill and a batch can all read it."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import papermill
import pytest

from casebook.runs import declared
from casebook.runs.spec import repo_root

NOTEBOOKS = sorted((repo_root() / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture
def notebook(path: Path) -> dict[str, Any]:
    return declared.read_notebook(path)


def _code(notebook: dict[str, Any]) -> list[str]:
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return [declared.source(cell) for cell in cells]


def test_it_opens_with_its_one_title(notebook: dict[str, Any]) -> None:
    first = notebook["cells"][0]
    assert first["cell_type"] == "markdown"
    assert declared.source(first).startswith("# ")
    prose = [c for c in notebook["cells"] if c["cell_type"] == "markdown"]
    titles = [line for c in prose for line in _outside_fences(c) if line.startswith("# ")]
    assert len(titles) == 1


def test_its_one_parameters_cell_is_typed_and_commented(
    notebook: dict[str, Any], path: Path
) -> None:
    tagged = [c for c in notebook["cells"] if "parameters" in c["metadata"].get("tags", [])]
    assert len(tagged) == 1
    tree = ast.parse(declared.source(tagged[0]))
    # Nothing is derived there: a value that a run overrides would leave what hangs on it stale.
    assert all(isinstance(node, ast.AnnAssign) for node in tree.body)
    for node in tree.body:
        assert isinstance(node, ast.AnnAssign)
        assert node.value is not None
        ast.literal_eval(node.value)

    ours = declared.declared(notebook, path)
    papermills = papermill.inspect_notebook(str(path))
    assert list(papermills) == list(ours)
    for name, found in papermills.items():
        # One line each: papermill drops the comment of a value that goes over several.
        assert found["inferred_type_name"] == ours[name].type, name
        assert len(found["help"]) > 3, f"{name} has no comment that papermill can show"
        assert ast.literal_eval(found["default"]) == ast.literal_eval(ours[name].default or ""), (
            name
        )


def test_it_ends_by_recording_a_verdict(notebook: dict[str, Any]) -> None:
    last = ast.parse(_code(notebook)[-1]).body[-1]
    assert isinstance(last, ast.Expr)
    assert isinstance(last.value, ast.Call)
    assert isinstance(last.value.func, ast.Name)
    assert last.value.func.id == "record"
    assert any("from casebook.runs.verdict import record" in code for code in _code(notebook))


def test_it_holds_no_trace_of_a_run(notebook: dict[str, Any]) -> None:
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
        assert "injected-parameters" not in cell["metadata"].get("tags", [])
    assert "papermill" not in notebook["metadata"]
    assert "widgets" not in notebook["metadata"]


def test_its_kernel_has_the_name_that_exists_everywhere(notebook: dict[str, Any]) -> None:
    kernel = notebook["metadata"]["kernelspec"]
    assert (kernel["name"], kernel["language"]) == ("python3", "python")


def _outside_fences(cell: dict[str, Any]) -> list[str]:
    """The lines of a cell's prose that are not in a block of code."""
    found, inside = [], False
    for line in declared.source(cell).splitlines():
        if line.startswith("```"):
            inside = not inside
        elif not inside:
            found.append(line)
    return found


def test_the_launcher_page_links_to_it_by_its_title(notebook: dict[str, Any], path: Path) -> None:
    page = (path.parent / "README.md").read_text(encoding="utf-8")
    assert f"[{declared.title(notebook, '')}]({path.name})" in page, (
        f"Add a row for {path.name} to notebooks/README.md, which `make lab` opens."
    )
