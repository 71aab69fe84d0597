"""What a fault is: one step of the healthy pipeline replaced, and where that was seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from casebook.dflash.bench import Pipeline
from casebook.dflash.form import Form

SPECFORGE = "https://github.com/sgl-project/SpecForge"


@dataclass(frozen=True)
class Fault:
    """One way to get it wrong."""

    name: str
    source: str
    """Where it happened."""
    change: Callable[[Pipeline], Pipeline]


def fault(name: str, source: str, **changes: Any) -> Fault:
    """A fault of these steps; names that are fields of the training form go there."""
    of_form = {f.name for f in fields(Form)}
    inner = {k: v for k, v in changes.items() if k in of_form}
    outer = {k: v for k, v in changes.items() if k not in of_form}

    def change(pipeline: Pipeline) -> Pipeline:
        if inner:
            pipeline = replace(pipeline, form=replace(pipeline.form, **inner))
        return replace(pipeline, **outer)

    return Fault(name, source, change)
