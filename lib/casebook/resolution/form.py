"""A form to try launches in a live notebook; a static table where nobody can press a button."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from casebook.catalog.gpus import load_gpus
from casebook.catalog.models import ModelFacts
from casebook.catalog.releases import load_releases
from casebook.forms import Field, form
from casebook.launch import Launch
from casebook.resolution import page
from casebook.resolution.trace import trace


def answer(
    launch: str, release: str, gpu: str, model: str | Path | ModelFacts | None = None
) -> str:
    """The trail of a launch as HTML."""
    return page.trail(trace(launch, release=release, gpu=gpu, model=model))


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
    fields = [
        Field("launch", launch.lines(), lines=11),
        Field("release", release, [r.version for r in sorted(load_releases().values())]),
        Field("gpu", gpu, list(load_gpus())),
    ]
    return form(fields, lambda **values: answer(**values, model=model), button="Resolve", live=live)
