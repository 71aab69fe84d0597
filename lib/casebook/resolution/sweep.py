"""Resolve a launch over a grid of options, each point in a process of its own, several at a time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    scheduler: str = "",
) -> pd.DataFrame:
    """One row per point: its options, how the launch ends, and the final value of each of ``fields``.

    Each point runs isolated from the others; one that hangs or takes too much memory ends at its limit
    and the sweep goes on. ``jobs`` defaults to the number of cores. ``scheduler`` is the address of a
    Dask scheduler whose workers resolve the points instead; a checkpoint or a capsule of your own must
    then lie at the same path on each.
    """
    points = grid_launches(base, grid)
    launches = [launch for _, launch in points]
    asked = _Asked(tuple(fields), release, gpu, model, gpus, limits, capsule, launches[:1])
    rows: list[dict[str, Any]] = [{} for _ in points]
    with tqdm(total=len(points), unit="launch", disable=not progress) as bar:
        ends = (
            _there(scheduler, asked, launches)
            if scheduler
            else _ends(asked, launches, jobs or os.cpu_count() or 1)
        )
        for position, row in ends:
            rows[position] = {**points[position][0], **row}
            bar.update()
    columns = [*grid, "outcome", "reason", *fields]
    return pd.DataFrame(rows, columns=list(dict.fromkeys(columns)))


@dataclass(frozen=True)
class _Asked:
    """What is asked of each launch of a sweep; plain data, for another process."""

    fields: tuple[str, ...]
    release: str
    gpu: str
    model: str | Path | ModelFacts | None
    gpus: int | None
    limits: Limits | None
    capsule: Capsule | None
    first: Sequence[Launch]
    """The sweep's first launch: a child imports what it takes once, before the others."""


def _ends(
    asked: _Asked, launches: Sequence[Launch], jobs: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """How each launch ends, with its position, in the order in which they end."""
    held = asked.capsule or capsules.ensure(asked.release)
    profile = find_gpu(asked.gpu)
    device = profile.as_device(asked.gpus or profile.devices_per_node)
    stages = [set_stage(launch, asked.model) for launch in launches]
    warm_with = [set_stage(launch, asked.model).launch.argv for launch in asked.first]
    env = {k: v for one in asked.first for k, v in one.env.items() if not is_reserved(k)}
    worker = pool.worker(held, device, env, warm_with=warm_with[0] if warm_with else ())
    requests = (
        {
            "argv": list(s.launch.argv),
            "env": env,
            "cwd": str(Path.cwd()),
            "fields": list(asked.fields),
        }
        for s in stages
    )
    for position, raw in worker.map("resolve", requests, asked.limits, jobs):
        answer = stages[position].restore(raw)
        yield position, _row(answer, launches[position], asked.fields)


def _there(
    scheduler: str, asked: _Asked, launches: Sequence[Launch]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """As ``_ends``, in parts on the workers of a Dask cluster."""
    from casebook.runs import tasks  # brings what runs notebooks; few sweeps need it

    with tasks.connection(scheduler) as client:
        parts = tasks.parts(range(len(launches)), client)
        asking = [(asked, [launches[n] for n in part]) for part in parts]
        label = f"a part of the sweep on SGLang {asked.release}"
        for number, rows in tasks.over(client, _answered, asking, label=lambda _: label):
            yield from zip(parts[number], rows, strict=True)


def _answered(asking: tuple[_Asked, Sequence[Launch]]) -> list[dict[str, Any]]:
    """The rows of one part, in its order."""
    found = dict(_ends(*asking, jobs=1))
    return [found[position] for position in range(len(found))]


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
