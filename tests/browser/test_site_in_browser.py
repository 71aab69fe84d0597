"""The site as a reader has it: from files, searched, light and dark, on a desk and on a phone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casebook.runs.batch import run_batch
from casebook.runs.site import write_site
from casebook.runs.spec import RunSpec, repo_root

pytestmark = pytest.mark.browser

TABLE = (
    "import pandas as pd, matplotlib.pyplot as plt\n"
    "plt.plot([n, 2]); plt.title('A picture')\n"
    "pd.DataFrame({f'a column with a long name {i}': [i * 1.5] for i in range(20)})"
)
VERDICT = (
    "from casebook.runs.verdict import record\n"
    "record('FAIL' if n else 'PASS', evidence='`a` is 1', headline=f'It is {n}.')"
)
CASE = {
    "source": "https://forum.example/1",
    "launch": "python -m sglang.launch_server --model-path x --page-size 32",
    "cause": "`_handle_x` sets it",
    "mend": "another backend",
}
STATES = ["reproduces", "mended", "not applicable"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index of four runs, one of them broken, and a dozen cases."""
    folder = tmp_path_factory.mktemp("site")
    import nbformat
    from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    parameters = new_code_cell("n: int = 0  # which", metadata={"tags": ["parameters"]})
    cells = [new_markdown_cell("# Tables\n\nProse with `code`."), parameters]
    cells += [new_code_cell(TABLE), new_code_cell(VERDICT)]
    good, bad = folder / "tables.ipynb", folder / "broken.ipynb"
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), good)
    broken = [new_markdown_cell("# Broken"), new_code_cell("{}['no such key']")]
    nbformat.write(new_notebook(cells=broken, metadata={"kernelspec": kernel}), bad)
    specs = [RunSpec.of(good, {"n": n}) for n in range(3)]
    out = folder / "results"
    run_batch([*specs, RunSpec.of(bad)], out, progress=False)
    cases = [
        CASE
        | {
            "name": f"case-{i}",
            "title": f"Page size number {i} is lost",
            "cells": [
                {
                    "release": r,
                    "state": STATES[(i + j) % 3],
                    "detail": "`x` ends as 1",
                    "trail": "x",
                }
                for j, r in enumerate(("0.5.9", "0.5.11", "0.5.23"))
            ],
        }
        for i in range(12)
    ]
    (out / "cases.json").write_text(json.dumps(cases))
    return write_site(out)


def test_a_reader_finds_the_failed_run_and_a_case(chromium: Any, site: Path) -> None:
    page = chromium.new_page()
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(site.as_uri())
    assert page.locator("output").inner_text() == "16 of 16 shown"
    page.get_by_label("Outcome").select_option("FAIL")
    assert page.locator("output").inner_text() == "2 of 16 shown"
    page.get_by_label("Outcome").select_option("")
    page.get_by_role("searchbox").fill("no such KEY")
    assert page.locator("article:visible").count() == 1
    # What is shown has an address, so that it can be passed on.
    page.reload()
    assert page.locator("output").inner_text() == "1 of 16 shown"
    page.get_by_role("link", name="Broken", exact=True).click()
    page.get_by_role("link", name="Go to it.").click()
    assert page.get_by_text("{}['no such key']", exact=False).first.is_visible()
    page.get_by_role("link", name="All runs").click()
    page.get_by_role("searchbox").fill("number 7")
    page.get_by_role("link", name="Page size number 7 is lost").click()
    page.get_by_text("the trail").first.click()
    assert page.get_by_role("heading", name="On each release").is_visible()
    assert not errors
    assert all(url.startswith("file:") for url in asked)


def test_it_reads_without_scripts(chromium: Any, site: Path) -> None:
    page = chromium.new_context(java_script_enabled=False).new_page()
    page.goto(site.as_uri())
    assert page.locator("article").count() == 4
    assert not page.locator("form").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_axe_finds_no_serious_fault_and_nothing_overflows(
    chromium: Any, site: Path, scheme: str, width: int
) -> None:
    axe = repo_root() / "build/node_modules/axe-core/axe.min.js"
    if not axe.is_file():
        pytest.skip("there is no axe-core: `make browser` installs it where npm is")
    # The page's policy would keep the checker out too.
    context = chromium.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    out = site.parent
    for path in [site, out / "cases" / "case-0.html", *sorted((out / "html").glob("*.html"))]:
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path.name
        page.add_script_tag(path=str(axe))
        found = page.evaluate("axe.run()")["violations"]
        serious = [v for v in found if v["impact"] in ("serious", "critical")]
        assert not serious, [(v["id"], v["nodes"][0]["html"]) for v in serious]
    context.close()
