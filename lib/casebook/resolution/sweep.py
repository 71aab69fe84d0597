"""Resolve a launch over a grid of options, each point in a process of its own, several at a time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from casebook import capsule as capsules
from casebook.capsule import Capsule
from casebook.catalog.gpus import gpu as find_gpu
from casebook.catalog.models import ModelFacts
from casebook.errors import LaunchError
from casebook.launch import Launch, Redactor
from casebook.resolution import pool
from casebook.resolution.trace import set_stage
from casebook.resolution.verdicts import outcome_of
from casebook.sandbox import Limits
from casebook.sandbox.boot import is_reserved


def grid_launches(
    base: Launch | str | Sequence[str], grid: Mapping[str, Iterable[Any]]
) -> list[tuple[dict[str, Any], Launch]]:
    """Each point of the grid with its launch: ``base`` with the options set to the point's values.

    A key is an option (``--page-size``); a value of None takes the option away, True gives it without
    a value, False takes it away. Raises LaunchError for a key that is no option.
    """
    base = Launch.of(base)
    for option in grid:
        if not option.startswith("--"):
            raise LaunchError(
                f"{option!r} is no option; a grid's keys begin with --, as --page-size."
            )
    values = [list(choices) for choices in grid.values()]
    points = [dict(zip(grid, chosen, strict=True)) for chosen in itertools.product(*values)]
    return [(point, _with(base, point)) for point in points]


def _with(base: Launch, point: Mapping[str, Any]) -> Launch:
    argv = list(base.argv)
    for option, value in point.items():
        argv = _without(argv, option)
        if value is True:
            argv.append(option)
        elif value not in (None, False):
            argv += [option, str(value)]
    return Launch(tuple(argv), base.env, base.entry)


def _without(argv: list[str], option: str) -> list[str]:
    kept: list[str] = []
    dropping = False
    for word in argv:
        if word == option or word.startswith(f"{option}="):
            dropping = word == option
            continue
        dropping = dropping and not word.startswith("--")
        if not dropping:
            kept.append(word)
    return kept


def sweep(
    base: Launch | str | Sequence[str],
    grid: Mapping[str, Iterable[Any]],
    *,
    fields: Sequence[str] = (),
    release: str = "0.5.11",
    gpu: str = "B200",
    model: str | Path | ModelFacts | None = None,
    gpus: int | None = None,
    jobs: int | None = None,
    limits: Limits | None = None,
    capsule: Capsule | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """One row per point: its options, how the launch ends, and the final value of each of ``fields``.

    Each point runs isolated from the others; one that hangs or takes too much memory ends at its limit
    and the sweep goes on. ``jobs`` defaults to the number of cores.
    """
    points = grid_launches(base, grid)
    held = capsule or capsules.ensure(release)
    profile = find_gpu(gpu)
    device = profile.as_device(gpus or profile.devices_per_node)
    stages = [set_stage(launch, model) for _, launch in points]
    env = {k: v for k, v in Launch.of(base).env.items() if not is_reserved(k)}
    warm_with = stages[0].launch.argv if stages else ()
    worker = pool.worker(held, device, env, warm_with=warm_with)
    requests = (
        {"argv": list(s.launch.argv), "env": env, "cwd": str(Path.cwd()), "fields": list(fields)}
        for s in stages
    )
    rows: list[dict[str, Any]] = [{} for _ in points]
    answers = worker.map("resolve", requests, limits, jobs or os.cpu_count() or 1)
    for position, raw in tqdm(answers, total=len(points), unit="launch", disable=not progress):
        point, launch = points[position]
        rows[position] = {**point, **_row(stages[position].restore(raw), launch, fields)}
    columns = [*grid, "outcome", "reason", *fields]
    return pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))


def _row(raw: dict[str, Any], launch: Launch, fields: Sequence[str]) -> dict[str, Any]:
    raw = Redactor.of(launch).value(raw)
    outcome = outcome_of(raw["outcome"], raw.get("command_line", {}), None)
    reason = raw["outcome"].get("message", "") or outcome.sentence
    final = raw.get("final", {})
    return {
        "outcome": str(outcome.kind),
        "reason": "" if outcome.starts else str(reason).strip().partition("\n")[0],
        **{field: final.get(field) for field in fields},
    }
