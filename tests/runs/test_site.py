"""The pages from records and cases: what they show, what they leave out, and that they ask for nothing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from casebook.errors import RunError
from casebook.runs.cells import html_cells
from casebook.runs.outcome import RunResult, State
from casebook.runs.shown import shown_cases, shown_runs
from casebook.runs.site import write_site
from casebook.runs.spec import RunSpec
from casebook.runs.store import Store

CASE = {
    "name": "page size/1",
    "title": "A page size is <overwritten>",
    "source": "https://forum.example/1",
    "cause": "`_handle_x` sets it",
    "mend": "give another backend",
    "cells": [
        {"release": "0.5.10", "state": "mended", "detail": "ends as 1", "as_stated": False},
        {"release": "0.5.9", "state": "reproduces", "detail": "ends as 64", "trail": "<b>why</b>"},
    ],
}


@pytest.fixture
def notebook(make_notebook: Any) -> Path:
    path: Path = make_notebook("n", "# Will it <fit>?", "1", parameters="n: int = 0")
    return path


def _add(spec: RunSpec, out: Path, state: State = State.OK, **fields: Any) -> None:
    Store.of(out).write_record(RunResult(spec, state, **fields))


def test_the_newest_run_of_each_set_of_parameters_is_shown(notebook: Path, tmp_path: Path) -> None:
    first, second = RunSpec.of(notebook, {"n": 1}), RunSpec.of(notebook, {"n": 2})
    _add(first, tmp_path, State.LOST, error="Gone.", started="2026-01-01T10:00:00+00:00")
    _add(second, tmp_path, started="2026-01-01T10:00:00+00:00")
    # The notebook changes: its next run has another key, and takes the place of the first.
    text = notebook.read_text().replace('"1"', '"2"')
    notebook.write_text(text)
    _add(RunSpec.of(notebook, {"n": 1}), tmp_path, started="2026-01-02T10:00:00+00:00")
    runs = shown_runs(tmp_path)
    assert [(r.parameters, r.state, r.outdated) for r in runs] == [
        ((("n", "1"),), State.OK, False),
        ((("n", "2"),), State.OK, True),
    ]
    (tmp_path / "records" / "damaged.json").write_text("{")
    assert shown_runs(tmp_path) == runs


def test_cases_have_a_row_and_a_page(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text(json.dumps([CASE]))
    index = write_site(tmp_path).read_text()
    assert '<a href="cases/page-size-1.html">A page size is &lt;overwritten&gt;</a>' in index
    assert re.findall(r'<th scope="col">([\d.]+)</th>', index) == ["0.5.9", "0.5.10"]
    assert 'data-state="mended|reproduces"' in index
    page = (tmp_path / "cases" / "page-size-1.html").read_text()
    assert "<code>_handle_x</code> sets it" in page
    assert "not as its file says" in page
    assert "&lt;b&gt;why&lt;/b&gt;" in page


def test_code_in_a_title_is_code_on_the_page_and_plain_on_its_tab(
    make_notebook: Any, tmp_path: Path
) -> None:
    notebook = make_notebook("n", "# The script says `a<b`", "1", parameters="n: int = 0")
    _add(RunSpec.of(notebook), tmp_path)
    (tmp_path / "cases.json").write_text(json.dumps([CASE | {"title": "`--x` is lost"}]))
    index = write_site(tmp_path).read_text()
    assert "<h3>The script says <code>a&lt;b</code></h3>" in index
    assert "<code>--x</code> is lost</a>" in index
    page = (tmp_path / "cases" / "page-size-1.html").read_text()
    assert "<h1><code>--x</code> is lost</h1>" in page
    assert "<title>--x is lost</title>" in page


@pytest.mark.parametrize("text", ["{}", '[{"name": "x"}]', "[3]", "not json"])
def test_a_file_that_holds_no_cases_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cases.json").write_text(text)
    with pytest.raises(RunError, match=r"cases\.json in .* is not a list of cases"):
        shown_cases(tmp_path)


def test_the_policy_allows_the_indexs_own_script_alone(notebook: Path, tmp_path: Path) -> None:
    spec = RunSpec.of(notebook)
    hostile = "<script>alert(1)</script>"
    _add(spec, tmp_path, State.CELL_ERROR, error=hostile)
    index = write_site(tmp_path).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", index, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in index
    assert hostile not in index


def test_a_failed_cell_is_open_and_others_are_folded(notebook: Path, tmp_path: Path) -> None:
    spec = RunSpec.of(notebook)
    executed = tmp_path / "notebooks" / f"{spec.slug}.ipynb"
    executed.parent.mkdir(exist_ok=True)
    error = new_output("error", ename="KeyError", evalue="'k'", traceback=["KeyError: 'k'"])
    cells = [new_code_cell("fine = 1"), new_code_cell("{}['k']", outputs=[error])]
    nbformat.write(new_notebook(cells=cells), executed)
    _add(spec, tmp_path, State.CELL_ERROR, error="In [2] raised KeyError: 'k'", output=executed)
    write_site(tmp_path)
    page = tmp_path / "html" / f"{spec.slug}.html"
    assert re.findall(r'<details class="code" ?(open)?.*?>', page.read_text()) == ["", "open"]
    # What has not changed is not rendered again.
    before = page.stat().st_mtime_ns
    write_site(tmp_path)
    assert page.stat().st_mtime_ns == before


def test_an_index_of_many_runs_and_cases_stays_small(notebook: Path, tmp_path: Path) -> None:
    said = {
        "state": "PASS",
        "headline": "It fits, with 12 GiB to spare.",
        "evidence": ["x" * 80] * 3,
    }
    for n in range(48):
        _add(RunSpec.of(notebook, {"n": n}), tmp_path, verdict=said)
    cases = [CASE | {"name": f"case {n}", "title": "y" * 80} for n in range(80)]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    assert write_site(tmp_path).stat().st_size < 300_000


def test_an_empty_folder_has_an_index_that_says_so(tmp_path: Path) -> None:
    assert "There is nothing here yet" in write_site(tmp_path).read_text()


def test_a_table_whose_index_spans_rows(tmp_path: Path) -> None:
    index = pd.MultiIndex.from_tuples([("a", "x"), ("a", "y")], names=["one", "two"])
    frame = pd.DataFrame({"figure": [1, 2]}, index=index).to_html()
    cell = new_code_cell("frame", outputs=[new_output("display_data", {"text/html": frame})])
    path = tmp_path / "spans.ipynb"
    nbformat.write(new_notebook(cells=[cell]), path)
    assert '<td class="number">2</td>' in (html_cells(path) or "")
