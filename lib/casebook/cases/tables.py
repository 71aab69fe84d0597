"""Cells as tables for a reader, and as the record that the site is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from casebook.cases.run import Cell, CellState

MARKS = {
    CellState.REPRODUCES: "reproduces",
    CellState.MENDED: "mended",
    CellState.NOT_APPLICABLE: "–",
}


def state_table(cells: Sequence[Cell]) -> pd.DataFrame:
    """One row per case, one column per release; ``!`` marks what is not as the case's file says."""
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        mark = MARKS[cell.state] + ("" if cell.as_stated else " !")
        rows.setdefault(cell.case.name, {})[cell.release] = mark
    releases = list(dict.fromkeys(cell.release for cell in cells))
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=releases)
    frame.index.name = "case"
    return frame


def detail_table(cells: Iterable[Cell]) -> pd.DataFrame:
    """One row per cell: state, what the file says, and why."""
    rows = [
        (c.case.name, c.release, str(c.state), str(c.stated or "(nothing)"), c.detail)
        for c in cells
    ]
    return pd.DataFrame(rows, columns=["case", "release", "state", "the file says", "why"])


def as_record(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """One entry per case with its cells, as plain data (``cases.json``)."""
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        case = cell.case
        entry = found.setdefault(
            case.name,
            {
                "name": case.name,
                "title": case.title,
                "source": case.source,
                "reported": case.reported,
                "expected": case.expected,
                "happened": case.happened,
                "cause": case.cause,
                "mend": case.mend,
                "note": case.note,
                "gpu": case.gpu,
                "launch": case.launch.script or case.launch.command,
                "cells": [],
            },
        )
        entry["cells"].append(
            {
                "release": cell.release,
                "state": str(cell.state),
                "detail": cell.detail,
                "as_stated": cell.as_stated,
                "trail": cell.trail,
            }
        )
    return list(found.values())
