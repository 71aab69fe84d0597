"""Sweeps: a launch under many settings, each point divided as the release would.

What changes shapes (strategy, draft tokens, tensor parallelism, dtypes) takes one dry run a combination;
fractions and limits are then varied by the closed form, thousands of points in a millisecond.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from casebook.catalog.flags import load_flags
from casebook.catalog.gpus import GpuProfile
from casebook.catalog.models import ModelFacts
from casebook.errors import MemoryPlanError
from casebook.launch import Launch
from casebook.measure import Calibration
from casebook.memory import closed_form
from casebook.memory.plan import HEADROOM_BYTES, MemoryPlan, knobs_of, plan, verdict_of
from casebook.resolution.sweep import grid_launches
from casebook.resolution.sweep import sweep as resolve_all

NUMBERS = (
    "mem_fraction_static",
    "max_mamba_cache_size",
    "mamba_full_memory_ratio",
    "max_running_requests",
    "max_total_tokens",
)
"""Axes that the closed form varies; every other axis is a flag and takes a dry run a value."""


@dataclass(frozen=True)
class Sweep:
    """The points of a sweep, tidy, and the plans that its shapes came from."""

    table: pd.DataFrame
    plans: Mapping[tuple[Any, ...], MemoryPlan]
    axes: tuple[str, ...]
    launch: Launch
    release: str
    gpu: str

    @property
    def starts(self) -> pd.DataFrame:
        """The points that come up with enough left."""
        return self.table[self.table["verdict"] == "starts"]


_SPELLINGS = {
    "strategy": ("--mamba-radix-cache-strategy", "--mamba-scheduler-strategy"),
    "tp": ("--tp-size",),
}
"""Short names of axes -> their flags, the later spelling first."""


def flag_name(axis: str, release: str) -> str:
    """The flag of an axis as the release spells it."""
    spellings = _SPELLINGS.get(axis, ("--" + axis.replace("_", "-"),))
    known = load_flags()
    for flag in spellings:
        if any(span.covers(release) for span in known.get(flag, ())):
            return flag
    return spellings[-1]


def sweep(
    base: Launch | str,
    grid: Mapping[str, Sequence[Any]],
    *,
    release: str = "0.5.11",
    gpu: str | GpuProfile = "B200",
    model: str | Path | ModelFacts | None = None,
    gpus: int | None = None,
    calibration: Calibration | None = None,
    headroom_bytes: int = HEADROOM_BYTES,
    progress: bool = True,
    scheduler: str = "",
) -> Sweep:
    """Every combination of ``grid`` (axis -> values) on top of ``base``.

    Axes are named as SGLang's arguments (``mem_fraction_static``, ``speculative_num_draft_tokens``,
    ``kv_cache_dtype``, ``tp``, ``strategy``...). ``None`` leaves a flag out, ``True`` gives it without a
    value. Sizes in the table are bytes of one rank. Raises MemoryPlanError for an empty grid or a value
    that is no number where one is needed; a shape that SGLang refuses is a verdict, not an error.

    ``scheduler`` is the address of a Dask scheduler whose workers do the dry runs instead; a checkpoint
    of your own must then lie at the same path on each.
    """
    launch = Launch.of(base)
    axes = tuple(grid)
    _check(grid)
    shapes = [axis for axis in axes if axis not in NUMBERS]
    numbers = [axis for axis in axes if axis in NUMBERS]
    combinations = list(itertools.product(*(grid[axis] for axis in shapes)))
    plain = {flag_name(axis, release): [None] for axis in numbers}
    asked = []
    for values in combinations:
        shape = dict(zip(shapes, values, strict=True))
        flags = {flag_name(axis, release): [value] for axis, value in shape.items()}
        ((_, held),) = grid_launches(launch, {**plain, **flags})
        varied = {axis: list(grid[axis]) for axis in numbers}
        asked.append(
            _Shape(shape, held, varied, release, gpu, model, gpus, calibration, headroom_bytes)
        )
    found: dict[int, tuple[MemoryPlan, pd.DataFrame]] = {}
    with tqdm(total=len(asked), desc="shapes", disable=not progress, leave=False) as bar:
        for position, answer in _there(scheduler, asked) if scheduler else _here(asked):
            found[position] = answer
            bar.update()
    plans = {values: found[position][0] for position, values in enumerate(combinations)}
    table = pd.concat([found[position][1] for position in range(len(asked))], ignore_index=True)
    profile = gpu.id if isinstance(gpu, GpuProfile) else str(gpu)
    return Sweep(table[[*axes, *_columns(table, axes)]], plans, axes, launch, release, profile)


@dataclass(frozen=True)
class _Shape:
    """One shape and what is varied on it: one dry run's worth of work, for another process, too."""

    shape: dict[str, Any]
    launch: Launch
    """Without the flags of what is varied."""
    varied: dict[str, list[Any]]
    release: str
    gpu: str | GpuProfile
    model: str | Path | ModelFacts | None
    gpus: int | None
    calibration: Calibration | None
    headroom_bytes: int


def _here(asked: Sequence[_Shape]) -> Iterator[tuple[int, tuple[MemoryPlan, pd.DataFrame]]]:
    return enumerate(map(_answered, asked))


def _there(
    scheduler: str, asked: Sequence[_Shape]
) -> Iterator[tuple[int, tuple[MemoryPlan, pd.DataFrame]]]:
    from casebook.runs import tasks  # brings what runs notebooks; few sweeps need it

    with tasks.connection(scheduler) as client:
        yield from tasks.over(client, _answered, asked, label=lambda one: f"the shape {one.shape}")


def _answered(asked: _Shape) -> tuple[MemoryPlan, pd.DataFrame]:
    """The plan of a shape, and its points."""
    made = plan(
        asked.launch,
        asked.model,
        asked.gpu,
        asked.calibration,
        release=asked.release,
        gpus=asked.gpus,
        headroom_bytes=asked.headroom_bytes,
    )
    effective = {axis: _effective(asked, axis) for axis in asked.varied}
    points = pd.DataFrame(
        list(itertools.product(*asked.varied.values())), columns=list(asked.varied), dtype=object
    )
    return made, _points(made, asked.shape, points, effective, asked.headroom_bytes)


def _columns(table: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    return [name for name in table.columns if name not in axes]


def _check(grid: Mapping[str, Sequence[Any]]) -> None:
    for axis, values in grid.items():
        if isinstance(values, str) or not len(values):
            raise MemoryPlanError(f"The axis {axis} needs a list of values; it has {values!r}.")
        if axis not in NUMBERS:
            continue
        for value in values:
            fine = value is None or (
                isinstance(value, (int, float, np.number))
                and not isinstance(value, bool)
                and np.isfinite(value)
            )
            if not fine:
                raise MemoryPlanError(
                    f"{value!r} on the axis {axis} is no finite number; give one."
                )


def _effective(asked: _Shape, axis: str) -> dict[Any, Any]:
    """What SGLang makes of each value: it derives one that is left out, and rewrites some (AITER scales
    a fraction that was given)."""
    values = asked.varied[axis]
    table = resolve_all(
        asked.launch,
        {flag_name(axis, asked.release): values},
        release=asked.release,
        gpu=asked.gpu if isinstance(asked.gpu, str) else asked.gpu.id,
        model=asked.model,
        gpus=asked.gpus,
        fields=[axis],
        progress=False,
    )
    return dict(zip(values, table[axis], strict=True))


_SIZES = (
    *("table_bytes", "conv_bytes", "ssm_bytes", "intermediate_ssm_bytes"),
    *("intermediate_conv_bytes", "kv_bytes", "draft_kv_bytes", "left_bytes"),
)


def _points(
    made: MemoryPlan,
    shape: Mapping[str, Any],
    points: pd.DataFrame,
    effective: Mapping[str, Mapping[Any, Any]],
    headroom: int,
) -> pd.DataFrame:
    count = len(points)
    table = points.copy()
    for axis, value in shape.items():
        table[axis] = [value] * count
    if made.facts is None or "at_sizing_bytes" not in made.run.raw:
        table["verdict"], table["reason"] = made.verdict, made.reason
        return table
    base = knobs_of(made.run)
    numbers = {name: np.full(count, getattr(base, name)) for name in NUMBERS}
    for name, known in effective.items():
        numbers[name] = _values([known[value] for value in points[name]], name)
    knobs = closed_form.Knobs(
        free_before_bytes=base.free_before_bytes,
        free_after_bytes=base.free_after_bytes,
        draft_weights_bytes=base.draft_weights_bytes,
        **numbers,
    )
    sizes = closed_form.size(made.facts, knobs)
    tight = (sizes.outcome == 0) & (sizes.left_bytes < headroom)
    reasons = np.array(closed_form.OUTCOMES, dtype=object)[sizes.outcome]
    named = [verdict_of(outcome) for outcome in closed_form.OUTCOMES]
    verdicts = np.array(named, dtype=object)[sizes.outcome]
    verdicts[tight], reasons[tight] = "tight", "little left for graphs and activations"
    table["verdict"], table["reason"] = verdicts, reasons
    alive = sizes.outcome == 0
    for name in ("tokens", "slots", "requests"):
        table[name] = pd.array(getattr(sizes, name), dtype="Int64")
        table.loc[~alive, name] = pd.NA
    table["limit"] = np.array(closed_form.LIMITS, dtype=object)[sizes.limit]
    table.loc[~alive, "limit"] = None
    for name in _SIZES:
        table[name] = getattr(sizes, name)
    return table


def _values(resolved: Sequence[Any], name: str) -> np.ndarray:
    fraction = name in ("mem_fraction_static", "mamba_full_memory_ratio")
    kind = np.float64 if fraction else np.int64
    return np.array([closed_form.UNSET if v is None or v != v else v for v in resolved], dtype=kind)
