"""A form to try launches in a live notebook; a static table where nobody can press a button."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from casebook.catalog.gpus import load_gpus
from casebook.catalog.models import ModelFacts
from casebook.catalog.releases import load_releases
from casebook.errors import CasebookError
from casebook.launch import Launch
from casebook.resolution import page
from casebook.resolution.trace import trace


class StaticHtml:
    """HTML that shows itself in a notebook and in its export."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_html_(self) -> str:
        return self.text


def answer(text: str, release: str, gpu: str, model: str | Path | ModelFacts | None = None) -> str:
    """The trail of a launch as HTML, or the one sentence that says why there is none."""
    try:
        return page.trail(trace(text, release=release, gpu=gpu, model=model))
    except CasebookError as error:
        return page.preformatted(str(error))


def explain_form(
    launch: Launch,
    *,
    release: str,
    gpu: str,
    model: str | Path | ModelFacts | None = None,
    live: bool | None = None,
) -> Any:
    """A form with the launch, a release and a GPU; ``live`` defaults to whether someone can use it.

    The button calls ``answer`` and nothing else. Headless (papermill, nbmake, an export) the same
    answer is shown as a table.
    """
    if live is None:
        live = "JPY_SESSION_NAME" in os.environ and "CASEBOOK_VERDICT_FILE" not in os.environ
    if not live:
        return StaticHtml(answer(str(launch), release, gpu, model))
    import ipywidgets as widgets

    words = widgets.Textarea(value=launch.lines(), layout={"width": "100%", "height": "14em"})
    releases = [r.version for r in sorted(load_releases().values())]
    which = widgets.Dropdown(options=releases, value=release, description="release")
    device = widgets.Dropdown(options=list(load_gpus()), value=gpu, description="GPU")
    button = widgets.Button(description="Resolve", button_style="primary")
    shown = widgets.HTML()

    def resolve(_button: Any) -> None:
        button.disabled = True
        shown.value = "<p>Asking SGLang …</p>"
        try:
            shown.value = answer(words.value, which.value, device.value, model)
        finally:
            button.disabled = False

    button.on_click(resolve)
    return widgets.VBox([words, widgets.HBox([which, device, button]), shown])
