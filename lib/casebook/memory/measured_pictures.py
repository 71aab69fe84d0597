"""Pictures of measured against predicted: residuals by component, release or GPU, and beside the peers'."""

from __future__ import annotations

from collections.abc import Mapping

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from casebook.memory.measured import WITH_LOAD, WITHOUT_LOAD

# Okabe and Ito's palette, and a shape each: told apart without colour, too.
CHECKS: Mapping[str, tuple[str, str, str]] = {
    "pools": ("bytes of a pool", "#0072B2", "o"),
    "division": ("slots, tokens, requests", "#E69F00", "^"),
    "weights": ("weights", "#009E73", "s"),
    "outcome": ("whether it starts", "#CC79A7", "D"),
}
_INK = "#222222"
_LINEAR = 1.0  # per cent up to which the axis is linear


def residual_strips(table: pd.DataFrame, by: str, title: str | None = None) -> Figure:
    """One line a value of ``by``, one mark a figure: how far the measured one lies from the plan, in %.

    Full marks are within their tolerance, hollow ones beyond it.
    """
    groups = sorted(table[by].astype(str).unique(), reverse=True)
    figure, axes = plt.subplots(figsize=(9.5, 1.4 + 0.36 * len(groups)))
    for tolerance, shade in ((WITHOUT_LOAD, "#F2F2F2"), (WITH_LOAD, "#E2E2E2")):
        axes.axvspan(-tolerance, tolerance, color=shade, zorder=0)
    axes.axvline(0, color=_INK, lw=0.8, zorder=1)
    for check, (_, colour, marker) in CHECKS.items():
        part = table[table["check"] == check]
        for within, face in ((True, colour), (False, "none")):
            some = part[part["within"].astype(bool) == within]
            rows = np.array([groups.index(str(value)) for value in some[by]], float)
            axes.scatter(
                some["percent"].astype(float),
                rows + _spread(some[by].astype(str)),
                marker=marker,
                s=38,
                facecolors=face,
                edgecolors=colour,
                linewidths=1.4,
                zorder=3,
            )
    axes.set_xscale("symlog", linthresh=_LINEAR)
    limit = max(10.0, float(table["percent"].abs().max()) * 1.3)
    axes.set_xlim(-limit, limit)
    ticks = [t for t in (-100, -10, -4, -1, 0, 1, 4, 10, 100) if abs(t) <= limit]
    axes.set_xticks(ticks, [f"{t:+d}" if t else "0" for t in ticks])
    axes.minorticks_off()
    axes.set_yticks(range(len(groups)), [group.replace("_", " ") for group in groups])
    axes.set_ylim(-0.6, len(groups) - 0.4)
    axes.set_xlabel("measured less predicted, % of measured")
    axes.set_title(title or finding(table), loc="left", fontsize=11)
    handles = [
        Line2D([], [], color=colour, marker=marker, ls="", label=label)
        for check, (label, colour, marker) in CHECKS.items()
        if (table["check"] == check).any()
    ]
    hollow = Line2D([], [], color=_INK, marker="o", ls="", mfc="none", label="beyond its tolerance")
    figure.legend(handles=[*handles, hollow], loc="outside lower center", ncol=5, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.set_layout_engine("constrained")
    return figure


def finding(table: pd.DataFrame) -> str:
    """What the comparison comes to, in one line."""
    within = int(table["within"].astype(bool).sum())
    beyond = table[~table["within"].astype(bool)]
    rest = f"; {len(beyond)} are not, each explained" if len(beyond) else ""
    if (beyond["explanation"] == "").any():
        rest = f"; {len(beyond)} are not"
    return f"{within} of {len(table)} measured figures are as planned, within their tolerance{rest}"


def _spread(values: pd.Series) -> np.ndarray:
    """Small steps up and down, so that equal marks do not hide each other."""
    order = values.groupby(values).cumcount()
    count = values.groupby(values).transform("size")
    return np.asarray(0.5 * ((order + 0.5) / count - 0.5), float)
