"""JupyterLab as `make lab` opens it: the launcher page, notebook 02 by "Run All", and its form."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from casebook.runs.processes import kill_tree
from casebook.runs.spec import repo_root

pytestmark = [pytest.mark.browser, pytest.mark.capsule, pytest.mark.slow]

# A first question may build a capsule; the browser waits for what it looks for, not for a time.
PATIENCE_MS = 420_000
PROMPTLY_MS = 60_000


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with copies of the notebooks, set up as the Makefile does."""
    pytest.importorskip("jupyterlab")
    home = tmp_path_factory.mktemp("lab")
    shutil.copytree(repo_root() / "notebooks", home / "notebooks")
    told = re.search(r"JUPYTER_CONFIG_PATH=(\S+) .*default_url=(\S+)", _makefile())
    assert told
    env = os.environ | {
        "JUPYTER_CONFIG_PATH": str(repo_root() / told[1]),
        # Nothing of the person's who runs the tests.
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
    }
    copies = sorted(map(str, (home / "notebooks").glob("*.ipynb")))
    assert "jupyter trust $(NOTEBOOKS)" in _makefile()
    subprocess.run([sys.executable, "-m", "jupyter", "trust", *copies], env=env, check=True)
    options = ["--no-browser", "--ip=127.0.0.1", "--port=0", f"--ServerApp.root_dir={home}"]
    options += [f"--LabApp.default_url={told[2]}", "--LabApp.expose_app_in_browser=True"]
    options += ["--allow-root"] if os.geteuid() == 0 else []
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        for line in process.stderr:
            if found := re.search(r"(http://127\.0\.0\.1:\d+)/\S*\?token=(\w+)", line):
                break
        else:
            pytest.fail("JupyterLab did not start")
        # Read on, so that the server never waits for a full pipe.
        drain = subprocess.Popen(["cat"], stdin=process.stderr, stdout=subprocess.DEVNULL)
        yield f"{found[1]}/?token={found[2]}"
    finally:
        kill_tree(process.pid)
        process.wait()
    drain.wait()


def _makefile() -> str:
    return (repo_root() / "Makefile").read_text(encoding="utf-8")


@pytest.fixture
def page(chromium: Any, lab: str) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    made = context.new_page()
    made.set_default_timeout(PROMPTLY_MS)
    made.goto(lab)
    yield made
    context.close()


def test_the_launcher_page_leads_to_a_notebook_and_its_form_answers(page: Any) -> None:
    launcher = page.locator(".jp-RenderedMarkdown")
    link = launcher.get_by_role("link", name="One launch, argument by argument")
    link.wait_for()
    _picture(page, "lab-launcher")
    link.click()
    notebook = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook")
    notebook.get_by_role("heading", name="One launch, argument by argument").wait_for()
    # A kernel was found without a question, and opening changed nothing.
    page.get_by_text(re.compile(r"Python 3 \(ipykernel\)")).first.wait_for()
    assert not page.locator(".jp-Dialog").count()
    assert page.evaluate(_STATE) == {"dirty": False, "trusted": True, "kernel": "python3"}

    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    form = notebook.locator(".widget-vbox", has=page.get_by_role("button", name="Resolve")).last
    button = form.get_by_role("button", name="Resolve")
    button.wait_for(timeout=PATIENCE_MS)
    gpu, release = form.locator("select").nth(1), form.locator("select").nth(0)
    assert release.input_value() != "0.5.11"
    notebook.get_by_text("PASS", exact=True).first.wait_for(timeout=PATIENCE_MS)

    release.select_option("0.5.11")
    gpu.select_option("H200")
    button.click()
    shown = form.locator(".widget-html-content")
    shown.get_by_text("SGLang 0.5.11").first.wait_for(timeout=PATIENCE_MS)
    assert "H200" in shown.inner_text()
    assert shown.locator("table tr").count() > 3
    form.scroll_into_view_if_needed()
    _picture(page, "lab-form")


def _picture(page: Any, name: str) -> None:
    """Keep a picture for a person, in the folder that CASEBOOK_SCREENSHOTS names."""
    if folder := os.environ.get("CASEBOOK_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


# The model of the notebook in front, as JupyterLab holds it.
_STATE = """async () => {
  const panel = window.jupyterapp.shell.currentWidget;
  await panel.context.ready;
  await panel.sessionContext.ready;
  const cells = [...panel.content.model.cells];
  return {
    dirty: panel.context.model.dirty,
    trusted: cells.filter(cell => cell.type === 'code').every(cell => cell.trusted),
    kernel: panel.sessionContext.session?.kernel?.name ?? null,
  };
}"""


def test_the_server_offers_the_kernel_that_the_notebooks_name(lab: str) -> None:
    with urlopen(lab.replace("/?", "/api/kernelspecs?")) as answer:
        assert "python3" in json.load(answer)["kernelspecs"]
