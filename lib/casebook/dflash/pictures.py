"""Pictures of a DFlash study. Colours are Okabe and Ito's, which colour-blind readers tell apart."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

BLUE, ORANGE, GREEN, VERMILION, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#BBBBBB"
_STATES = {"pass": 0, "fail": 1, "not applicable": 2}


def fault_table(table: pd.DataFrame) -> Figure:
    """Faults by checks: which check noticed which fault."""
    codes = table.map(_STATES.__getitem__).to_numpy()
    figure, axes = plt.subplots(figsize=(11, 0.24 * len(table) + 1.6), layout="constrained")
    axes.imshow(
        codes, cmap=ListedColormap(["#F2F2F2", VERMILION, "#FFFFFF"]), vmin=0, vmax=2, aspect="auto"
    )
    for row, column in np.argwhere(codes == 1):
        axes.text(column, row, "×", ha="center", va="center", color="white", fontsize=8)
    axes.set_xticks(range(table.shape[1]), [str(c) for c in table.columns], fontsize=7)
    axes.set_yticks(range(len(table)), list(table.index), fontsize=7)
    axes.set_xlabel("check (number)")
    axes.set_ylabel("injected fault")
    faults = table.drop(index="healthy", errors="ignore")
    caught = int((faults == "fail").any(axis=1).sum())
    axes.set_title(
        f"{caught} of {len(faults)} faults are noticed by at least one check (× = the check fails)"
    )
    plt.close(figure)
    return figure


def training_blind(faults: pd.DataFrame) -> Figure:
    """Training accuracy and served acceptance length of each fault that was trained."""
    figure, axes = plt.subplots(figsize=(9, 0.32 * len(faults) + 1.4), layout="constrained")
    at = np.arange(len(faults))
    axes.barh(
        at,
        faults["served_tau_tokens"],
        color=BLUE,
        height=0.6,
        label="served acceptance length, tokens",
    )
    axes.plot(
        faults["training_accuracy_share"], at, "D", color=ORANGE, label="training accuracy, share"
    )
    axes.set_yticks(at, list(faults.index), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("tokens a step (bars), share of 1 (diamonds)")
    axes.set_ylabel("injected fault")
    axes.legend(loc="lower right")
    high = int((faults["training_accuracy_share"] > 0.999).sum())
    axes.set_title(
        f"Training accuracy is 1.000 in {high} of {len(faults)} rows; serving tells them apart"
    )
    plt.close(figure)
    return figure


def learning(
    records: pd.DataFrame, curve: pd.DataFrame, floor: dict[str, float], block_size: int
) -> Figure:
    """Loss over steps; held-out acceptance length over training seconds, beside its floors."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    if len(records):
        loss = records["loss_nats"]
        smooth = loss.rolling(max(1, min(20, len(loss) // 4)), min_periods=1).median()
        left.plot(records["step"], loss, color=GREY, linewidth=1, label="each step")
        left.plot(records["step"], smooth, color=BLUE, label="median of the last steps")
        # The first steps are ten times what follows; on a linear axis they would hide all of it.
        left.set_yscale("log")
        left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        left.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        left.yaxis.set_minor_formatter(NullFormatter())
        left.set_title(f"Training loss goes from {loss.iloc[0]:.1f} to {smooth.iloc[-1]:.2f} nats")
        left.legend()
    left.set_xlabel("step")
    left.set_ylabel("training loss, nats")
    right.plot(
        curve["train_seconds"], curve["tau_tokens"], "o-", color=GREEN, label="trained drafter"
    )
    for colour, (name, value) in zip((VERMILION, GREY), floor.items(), strict=False):
        right.axhline(value, color=colour, linestyle="--", label=f"{name}: {value:.2f}")
    right.set_xlabel("training time, s")
    right.set_ylabel("held-out acceptance length, tokens")
    last = float(curve["tau_tokens"].iloc[-1])
    right.set_title(f"Held-out acceptance length reaches {last:.2f} of {block_size}")
    right.legend()
    plt.close(figure)
    return figure


def budget(table: pd.DataFrame, highlight: str) -> Figure:
    """Offline store of each target, largest first."""
    ordered = table.sort_values("offline store, TB")
    figure, axes = plt.subplots(figsize=(9, 0.22 * len(ordered) + 1.4), layout="constrained")
    colours: Any = [VERMILION if n == highlight else BLUE for n in ordered.index]
    axes.barh(list(ordered.index), ordered["offline store, TB"], color=colours)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("hidden states of all tokens, TB")
    axes.set_ylabel("target")
    here = (
        f"{highlight}: {table.loc[highlight, 'offline store, TB']:.0f} TB"
        if highlight in table.index
        else ""
    )
    axes.set_title(f"Offline hidden states. {here}")
    plt.close(figure)
    return figure
