"""Pictures of plans and sweeps: the ledger as a bar, and where the two kinds of failure lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from casebook.catalog.gpus import GIB
from casebook.memory.plan import MemoryPlan
from casebook.memory.sweep import Sweep

# Okabe and Ito's palette: told apart by colour-blind readers.
PARTS: Mapping[str, tuple[str, str]] = {
    "before_load": ("taken before the weights", "#999999"),
    "weights": ("weights", "#0072B2"),
    "draft_weights": ("draft weights", "#56B4E9"),
    "conv_state": ("convolution state", "#8C510A"),
    "ssm_state": ("Mamba state", "#E69F00"),
    "intermediate_ssm": ("intermediate states", "#F0E442"),
    "intermediate_conv": ("intermediate windows", "#BF812D"),
    "kv": ("KV cache", "#009E73"),
    "draft_kv": ("draft KV cache", "#66C2A5"),
    "request_table": ("request table", "#CC79A7"),
    "other_buffers": ("other buffers", "#444444"),
    "slack": ("slack", "#777777"),
    "graphs": ("graphs", "#CC79A7"),
}
_LEFT = "#F2F2F2"
_INK = "#222222"
VERDICTS: Mapping[str, tuple[str, str]] = {
    "starts": ("starts", "#009E73"),
    "tight": ("starts, little left", "#F0E442"),
    "not enough memory": ("fails at sizing: raise the fraction", "#56B4E9"),
    "out of memory": ("runs out later: lower the fraction", "#D55E00"),
    "refused": ("SGLang refuses the flags", "#666666"),
}


def ledger_bars(plans: Mapping[str, MemoryPlan], title: str | None = None) -> Figure:
    """One bar a plan: every part of the device's memory, in the order in which it is spent."""
    figure, axes = plt.subplots(figsize=(10, 1.1 + 0.62 * len(plans)))
    used: dict[str, None] = {}
    labels = list(plans)
    for row, label in enumerate(labels):
        made = plans[label]
        start = 0.0
        for entry in made.entries:
            width = entry.bytes / GIB
            axes.barh(row, width, left=start, color=PARTS[entry.part][1], edgecolor="white", lw=0.6)
            if width > 0.045 * made.device.total_bytes / GIB:
                dark = entry.part in ("weights", "kv", "conv_state", "other_buffers")
                axes.text(
                    start + width / 2, row, f"{width:.1f}", ha="center", va="center", size=8,
                    color="white" if dark else _INK,
                )  # fmt: skip
            start += width
            if entry.bytes:
                used[entry.part] = None
        left = made.device.total_bytes / GIB - start
        if left > 0:
            axes.barh(row, left, left=start, color=_LEFT, edgecolor="#BBBBBB", lw=0.6, hatch="//")
    totals = max(made.device.total_bytes for made in plans.values()) / GIB
    axes.axvline(totals, color=_INK, lw=1)
    axes.set_yticks(range(len(labels)), [f"{n}\n{plans[n].verdict}" for n in labels], size=9)
    axes.invert_yaxis()
    axes.set_xlabel("GiB of one rank's device")
    axes.set_xlim(0, totals * 1.005)
    handles = [Patch(color=PARTS[part][1], label=PARTS[part][0]) for part in PARTS if part in used]
    handles.append(Patch(facecolor=_LEFT, edgecolor="#BBBBBB", hatch="//", label="left"))
    axes.legend(
        handles=handles, ncols=4, loc="upper left", bbox_to_anchor=(0, -0.28 - 0.02 * len(plans)),
        frameon=False, fontsize=8,
    )  # fmt: skip
    axes.set_title(title or _ledger_title(plans), loc="left", size=12, weight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    plt.close(figure)
    return figure


def _ledger_title(plans: Mapping[str, MemoryPlan]) -> str:
    fits = sum(made.fits for made in plans.values())
    if len(plans) == 1:
        (made,) = plans.values()
        return "It fits" if made.fits else f"It does not fit: {made.verdict}"
    return f"{fits} of {len(plans)} launches fit"


def frontier(
    swept: Sweep,
    x: str,
    y: str,
    *,
    value: str = "tokens",
    measured: Iterable[tuple[Any, Any, str]] = (),
    title: str | None = None,
    where: Mapping[str, Any] | None = None,
) -> Figure:
    """A sweep over two axes: colour tells what becomes of a point, the number ``value`` (in thousands).

    ``measured`` are points of real servers, ``(x, y, label)``, drawn on top; ``where`` fixes other axes.
    """
    table = swept.table
    for axis, held in (where or {}).items():
        table = table[table[axis].isna() if held is None else table[axis] == held]
    columns, rows = _order(table[x]), _order(table[y])
    names = list(VERDICTS)
    codes = np.full((len(rows), len(columns)), len(names) - 1)
    figure, axes = plt.subplots(figsize=(1.6 + 0.72 * len(columns), 1.8 + 0.42 * len(rows)))
    for record in table.to_dict("records"):
        row, column = _place(rows, record[y]), _place(columns, record[x])
        codes[row, column] = names.index(str(record["verdict"]))
        shown = record.get(value)
        if shown is not None and shown is not pd.NA and shown == shown:
            text = f"{shown / 1000:.0f}k" if value == "tokens" else f"{shown:,.0f}"
            axes.text(column, row, text, ha="center", va="center", size=7.5, color=_INK)
    colours = ListedColormap([VERDICTS[name][1] for name in names])
    axes.imshow(
        codes, cmap=colours, norm=BoundaryNorm(np.arange(len(names) + 1) - 0.5, len(names)),
        aspect="auto", alpha=0.75,
    )  # fmt: skip
    for at_x, at_y, label in measured:
        axes.plot(
            _between(columns, at_x),
            _between(rows, at_y),
            marker="*",
            ms=14,
            color=_INK,
            mec="white",
        )
        axes.annotate(
            label, (_between(columns, at_x), _between(rows, at_y)), xytext=(6, 6),
            textcoords="offset points", size=8, color=_INK,
        )  # fmt: skip
    axes.set_xticks(range(len(columns)), [_text(v) for v in columns], rotation=45, ha="right")
    axes.set_yticks(range(len(rows)), [_text(v) for v in rows])
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    present = [name for name in names if (codes == names.index(name)).any()]
    axes.legend(
        handles=[Patch(color=VERDICTS[n][1], alpha=0.75, label=VERDICTS[n][0]) for n in present],
        loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8,
    )  # fmt: skip
    axes.set_title(title or _frontier_title(codes, names), loc="left", size=12, weight="bold")
    figure.tight_layout()
    plt.close(figure)
    return figure


def _frontier_title(codes: np.ndarray, names: Sequence[str]) -> str:
    starts = int((codes == names.index("starts")).sum())
    return f"{starts} of {codes.size} settings start with enough left"


def _order(values: pd.Series) -> list[Any]:
    known = sorted({v for v in values if v is not None and v == v})
    return [*([None] if len(known) < values.nunique(dropna=False) else []), *known]


def _place(order: Sequence[Any], value: Any) -> int:
    missing = value is None or value != value
    return order.index(None) if missing else order.index(value)


def _between(order: Sequence[Any], value: Any) -> float:
    """Where a measured value lies on an axis of listed ones."""
    if value is None or value != value:
        return float(order.index(None)) if None in order else 0.0
    known = [v for v in order if v is not None]
    offset = len(order) - len(known)
    return offset + float(np.interp(float(value), [float(v) for v in known], range(len(known))))


def _text(value: Any) -> str:
    return (
        "not given" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    )
