"""Measurements as DataFrames: bytes, tokens, requests; one row a rank or one row a figure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from casebook.measure.model import Measurement, Server


def ranks_table(servers: Iterable[Server]) -> pd.DataFrame:
    """One row a rank of each server, one column a figure."""
    rows: list[dict[str, Any]] = []
    for number, server in enumerate(servers, start=1):
        for rank in server.ranks:
            row: dict[str, Any] = {"server": number, "rank": rank.rank, "outcome": rank.outcome}
            rows.append(row | {name: reading.value for name, reading in rank.figures.items()})
    table = pd.DataFrame(rows)
    numbers = [name for name in table if name not in ("server", "rank", "outcome")]
    return table.astype(dict.fromkeys(numbers, "Int64"))


def figures_table(measurement: Measurement) -> pd.DataFrame:
    """One row a figure: its value, unit, rounding and line, and whether its worker is assumed."""
    return pd.DataFrame(
        [
            {
                "figure": name,
                "value": reading.value,
                "unit": "bytes" if reading.step else "count",
                "rounding": reading.step / 2,
                "line": reading.line,
                "assumed": name in measurement.assumed,
            }
            for name, reading in measurement.figures.items()
        ],
        columns=["figure", "value", "unit", "rounding", "line", "assumed"],
    )
