"""Pictures of trails: the chain of writes, per launch and argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

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
