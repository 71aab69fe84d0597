"""Pictures of trails: the chain of writes, per launch and argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from casebook.resolution.model import Argument, Verdict, short
from casebook.resolution.trail import Trail

# Okabe and Ito's palette: told apart by colour-blind readers, and on grey.
_GIVEN, _DEFAULT, _CHANGED, _BAD = "#0072B2", "#999999", "#E69F00", "#D55E00"
_INK, _EDGE = "#222222", "#FFFFFF"
_BAD_VERDICTS = (Verdict.REJECTED, Verdict.OVERRIDDEN_SILENTLY, Verdict.LOST)


def chain_of_writes(
    trails: Mapping[str, Trail], fields: Sequence[str], title: str | None = None
) -> Figure:
    """One row per launch and argument: where its value came from, each write, how the launch ended.

    Colours: given by the launch, the release's default, changed by SGLang, blamed by the error.
    """
    rows = [
        (label, trail, trail[field])
        for label, trail in trails.items()
        for field in fields
        if field in trail
    ]
    steps = max((len(a.changes) for _, _, a in rows), default=0)
    lines = len(rows) + len(trails)
    figure, axes = plt.subplots(figsize=(3.4 + 3.1 * (steps + 1), 0.56 * lines + 1.2))
    y = 0.0
    for label, trail in trails.items():
        end = "starts" if trail.outcome.starts else str(trail.outcome.kind)
        axes.text(
            -1.55,
            y,
            f"{label}: the launch {'is ' if end == 'rejected' else ''}{end}",
            weight="bold",
            size=11,
            va="center",
            color=_INK,
        )
        y -= 0.9
        for row_label, _, argument in rows:
            if row_label == label:
                _row(axes, argument, y, trail.outcome.starts)
                y -= 1.0
        y -= 0.25
    _legend(axes)
    axes.set_xlim(-1.6, steps + 0.95)
    axes.set_ylim(y + 0.4, 0.6)
    axes.axis("off")
    figure.suptitle(title or _title(trails, fields), x=0.02, ha="left", size=13, weight="bold")
    figure.tight_layout()
    plt.close(figure)  # shown once, where the caller shows it
    return figure


def _row(axes: Axes, argument: Argument, y: float, starts: bool) -> None:
    axes.text(-1.5, y, argument.field, size=10, va="center", color=_INK)
    blamed = argument.verdict in _BAD_VERDICTS
    first = _GIVEN if argument.typed else _DEFAULT
    _box(axes, 0, y, short(argument.parsed, 22), first)
    for number, change in enumerate(argument.changes, 1):
        last = number == len(argument.changes)
        axes.annotate(
            "",
            xy=(number - 0.38, y),
            xytext=(number - 1 + 0.38, y),
            arrowprops={"arrowstyle": "->", "color": _INK, "lw": 1.2},
        )
        where = str(change.frame) if change.frame else change.kind
        axes.text(number - 0.5, y + 0.16, where, size=7.5, ha="center", color=_INK)
        if change.frame:
            axes.text(
                number - 0.5, y - 0.36, short(change.frame.function, 30),
                size=6.5, ha="center", color=_INK, style="italic",
            )  # fmt: skip
        _box(axes, number, y, short(change.new, 22), _BAD if blamed and last else _CHANGED)
    note = "" if starts or not blamed else "← the error names it"
    axes.text(len(argument.changes) + 0.42, y, note, size=9, va="center", color=_BAD)


def _box(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    axes.text(
        x, y, text, size=9, ha="center", va="center", color=_EDGE, weight="bold",
        bbox={"boxstyle": "round,pad=0.45", "facecolor": colour, "edgecolor": "none"},
    )  # fmt: skip


def _legend(axes: Axes) -> None:
    entries = {
        "given by the launch": _GIVEN,
        "the release's default": _DEFAULT,
        "changed by SGLang": _CHANGED,
        "blamed, or changed without a word": _BAD,
    }
    axes.legend(
        handles=[Patch(color=colour, label=text) for text, colour in entries.items()],
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=4,
        frameon=False,
        fontsize=8.5,
    )


def _title(trails: Mapping[str, Trail], fields: Sequence[str]) -> str:
    changed = sum(len(t[f].changes) for t in trails.values() for f in fields if f in t)
    release = next(iter(trails.values())).release
    return f"SGLang {release} changes these arguments {changed} times"


_VERDICT_COLOURS = {
    Verdict.REJECTED: "#D55E00",
    Verdict.OVERRIDDEN_SILENTLY: "#CC79A7",
    Verdict.OVERRIDDEN: "#E69F00",
    Verdict.LOST: "#F0E442",
    Verdict.HONOURED: "#0072B2",
    Verdict.DERIVED: "#56B4E9",
    Verdict.DEFAULTED: "#DDDDDD",
}
_NONE = "#FFFFFF"


def heat_map(
    trails: Mapping[str, Trail], fields: Sequence[str], title: str, across: str = "SGLang release"
) -> Figure:
    """Argument by trail: the final value in each cell, its verdict as the cell's colour.

    A cell is empty where the trail has no such argument; the top row tells how the launch ends.
    """
    columns = list(trails)
    figure, axes = plt.subplots(figsize=(2.6 + 0.82 * len(columns), 1.6 + 0.42 * (len(fields) + 1)))
    for x, trail in enumerate(trails.values()):
        ends = str(trail.outcome.kind)
        colour = "#009E73" if trail.outcome.starts else "#D55E00"
        _cell(axes, x, 0, ends, colour)
        for y, field in enumerate(fields, 1):
            argument = trail.get(field)
            if argument is None:
                _cell(axes, x, y, "", _NONE)
            else:
                _cell(axes, x, y, short(argument.final, 13), _VERDICT_COLOURS[argument.verdict])
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(fields) + 0.5, -0.5)
    axes.set_xticks(range(len(columns)), columns, rotation=60, ha="right", size=8)
    axes.set_yticks(range(len(fields) + 1), ["the launch", *fields], size=8)
    axes.set_xlabel(across)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    seen = {a.verdict for t in trails.values() for f in fields if (a := t.get(f))}
    axes.legend(
        handles=[
            Patch(color=colour, label=str(v)) for v, colour in _VERDICT_COLOURS.items() if v in seen
        ],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        fontsize=8,
        title="verdict",
        title_fontsize=8,
    )
    axes.set_title(title, loc="left", size=12, weight="bold")
    figure.tight_layout()
    plt.close(figure)
    return figure


def _cell(axes: Axes, x: int, y: int, text: str, colour: str) -> None:
    axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=colour, edgecolor="none"))
    light = colour in ("#DDDDDD", "#F0E442", "#56B4E9", "#E69F00", _NONE)
    axes.text(x, y, text, ha="center", va="center", size=6, color=_INK if light else _EDGE)
