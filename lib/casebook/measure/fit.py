"""Hold a predicted ledger against a measurement: what each part was off by, and what no plan can know.

A plan can compute pools to the byte but not what the driver, the context and other libraries take before
the weights, what the weights weigh once repacked for a kernel, what small buffers stand beside the
pools, or what graphs keep. Those four are taken from the log (:class:`Calibration`); everything else is a
residual. Ledgers are plain mappings of names to bytes (or tokens, slots, requests), with the names of
:attr:`Measurement.figures`, and ``kv`` and ``draft_kv`` for keys and values together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pandas as pd

from casebook.catalog.gpus import GIB
from casebook.measure.errors import MeasurementError
from casebook.measure.model import Measurement, Reading, Server

COMPONENTS = (
    "total", "free_before_load", "weights", "free_after_load", "draft_weights", "state_slots",
    "conv_state", "ssm_state", "intermediate_ssm", "intermediate_conv", "kv_tokens", "kv",
    "draft_kv_tokens", "draft_kv", "free_after_pools", "draft_free_after_pools", "graphs",
    "max_total_num_tokens", "max_running_requests", "free_at_end",
)  # fmt: skip
COLUMNS = (
    "component", "unit", "predicted", "measured", "difference", "percent", "rounding", "agrees",
    "assumed", "line",
)  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """What a log tells of the parts that no plan computes. Bytes of one rank; None where it is silent."""

    before_load_bytes: int | None = None
    """Taken before the weights: total memory less what was free then."""
    weights_bytes: int | None = None
    draft_weights_bytes: int | None = None
    slack_bytes: int | None = None
    """Gone between the loaded weights and the last pool, beyond what the log accounts for."""
    graph_bytes: int | None = None
    after_pools_bytes: int | None = None
    """Gone between the last pool and readiness beyond the graphs: workspaces, autotuning."""
    rounding: Mapping[str, int] = field(default_factory=dict)
    """Field -> how far the print's rounding alone may have moved it, in bytes."""
    assumed: frozenset[str] = frozenset()
    """Figures it rests on whose worker (target or draft) the log does not name."""


def whole_kv(figures: Mapping[str, Reading], *, alike: bool = False) -> dict[str, Reading]:
    """The figures with keys and values as one, too.

    ``alike`` takes V to be as large as K where K alone is printed.
    """
    found = dict(figures)
    for prefix in ("", "draft_"):
        k, v = found.get(f"{prefix}k"), found.get(f"{prefix}v")
        v = k if v is None and alike else v
        if f"{prefix}kv" not in found and k is not None and v is not None:
            found[f"{prefix}kv"] = Reading(k.value + v.value, k.line, k.step + v.step)
    return found


def measured_ledger(measurement: Measurement) -> dict[str, Reading]:
    """The figures of a measurement by the ledger's names, pools of keys and values as one."""
    figures = whole_kv(measurement.figures)
    graphs = [graph.usage for graph in measurement.graphs if graph.usage is not None]
    if graphs and measurement.graph_bytes is not None:
        step = sum(reading.step for reading in graphs)
        figures["graphs"] = Reading(measurement.graph_bytes, graphs[-1].line, step)
    return {name: figures[name] for name in COMPONENTS if name in figures}


def calibrate(predicted: Mapping[str, float], measurement: Measurement) -> Calibration:
    """What the log tells that the plan has to be given. Raises MeasurementError if it tells nothing.

    Of ``predicted`` only ``total``, the device's memory in bytes, is needed, and only for
    ``before_load_bytes``.
    """
    if not measurement.figures:
        raise MeasurementError(
            f"Rank {measurement.rank or '0'} shows no figure of memory; give a log with its start."
        )
    figures = measured_ledger(measurement)
    found: dict[str, tuple[int, int]] = {}
    before, total = figures.get("free_before_load"), predicted.get("total")
    if before is not None and total is not None:
        found["before_load_bytes"] = round(total) - before.value, before.step // 2
    for name in ("weights", "draft_weights", "graphs"):
        if reading := figures.get(name):
            key = "graph_bytes" if name == "graphs" else f"{name}_bytes"
            found[key] = reading.value, reading.step // 2
    start = figures.get("free_after_load")
    last = figures.get("draft_free_after_pools") or figures.get("free_after_pools")
    if start is not None and last is not None:
        found["slack_bytes"] = _unaccounted(measurement, start, last)
    if last is not None and measurement.free_at_end is not None and "graphs" in figures:
        found["after_pools_bytes"] = _unaccounted(measurement, last, measurement.free_at_end)
    used = {"free_before_load", "weights", "draft_weights", "free_after_load", "free_after_pools"}
    used |= {"draft_free_after_pools", *(n for n in measurement.figures if n.endswith("_graphs"))}
    return Calibration(
        **{name: value for name, (value, _) in found.items()},
        rounding={name: half for name, (_, half) in found.items()},
        assumed=measurement.assumed & used,
    )


def _unaccounted(measurement: Measurement, start: Reading, end: Reading) -> tuple[int, int]:
    """``(bytes, rounding)`` gone between two readings of free memory, less what the log names.

    Releases order drafts, pools and graphs differently, so what lies between is told by the lines.
    """
    named = [r for r in _allocations(measurement) if start.line < r.line <= end.line]
    gone = start.value - end.value - sum(reading.value for reading in named)
    return gone, (start.step + end.step + sum(reading.step for reading in named)) // 2


def _allocations(measurement: Measurement) -> Iterable[Reading]:
    """Every size of the log that is memory taken, each once."""
    found = [load.usage for load in measurement.loads]
    found += [graph.usage for graph in measurement.graphs]
    for pool in measurement.kv_pools:
        if not pool.reserved_only:
            found += [pool.k, pool.v, pool.total]
    if state := measurement.state:
        found += [state.conv, state.ssm, state.intermediate_ssm, state.intermediate_conv]
        found += [state.replay]
    return [reading for reading in found if reading is not None]


def residuals(predicted: Mapping[str, float], measurement: Measurement) -> pd.DataFrame:
    """Component by component: predicted, measured, the difference, and whether rounding explains it.

    ``difference`` is measured less predicted; ``percent`` is of the measured figure. Names that only
    one side has are left out.
    """
    figures = measured_ledger(measurement)
    halves = {"kv": "k", "draft_kv": "draft_k"}
    rows = []
    for name, reading in figures.items():
        if name not in predicted:
            continue
        value = predicted[name]
        difference = reading.value - value
        rows.append(
            {
                "component": name,
                "unit": "bytes" if reading.step else "count",
                "predicted": value,
                "measured": reading.value,
                "difference": difference,
                "percent": 100 * difference / reading.value if reading.value else float("nan"),
                "rounding": reading.step / 2,
                "agrees": reading.agrees(value),
                "assumed": bool({name, halves.get(name, name)} & measurement.assumed),
                "line": reading.line,
            }
        )
    return pd.DataFrame(rows, columns=list(COLUMNS))


def explain(table: pd.DataFrame) -> tuple[str, ...]:
    """The components that rounding does not explain, the largest first, one sentence each."""
    off = table[~table["agrees"].astype(bool)]
    off = off.reindex(off["difference"].abs().sort_values(ascending=False).index)
    sizes = [_sentence(row) for row in off[off["unit"] == "bytes"].to_dict("records")]
    counts = [_sentence(row) for row in off[off["unit"] == "count"].to_dict("records")]
    return (*sizes, *counts)


def _sentence(row: Mapping) -> str:
    less = "more" if row["difference"] > 0 else "less"
    percent = f" ({row['percent']:+.2f} %)" if row["percent"] == row["percent"] else ""
    if row["unit"] == "bytes":
        text = (
            f"{row['component']}: {abs(row['difference']) / GIB:.2f} GiB {less} than planned, "
            f"{row['measured'] / GIB:.2f} for {row['predicted'] / GIB:.2f}{percent}"
        )
    else:
        text = (
            f"{row['component']}: {abs(row['difference']):,.0f} {less} than planned, "
            f"{row['measured']:,.0f} for {row['predicted']:,.0f}{percent}"
        )
    return f"{text}; the log does not say of which worker." if row["assumed"] else f"{text}."


def fullest_rank(server: Server) -> Measurement:
    """The rank that shows most. Raises MeasurementError for a server whose ranks show nothing."""
    shown = [rank for rank in server.ranks if rank.figures]
    if not shown:
        end = f": it died of {server.failure.text!r}" if server.failure else ""
        raise MeasurementError(
            f"The server of line {server.first_line} shows no figure of memory{end}; give a log with the "
            "lines from `Load weight begin` on."
        )
    return max(shown, key=lambda rank: len(rank.figures))
