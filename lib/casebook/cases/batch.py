"""Many cases on many releases, here or on a Dask cluster, and what is kept of them in between.

Cells that share a release and a GPU are one piece of work: one warm child answers them all. The same
function runs a piece here and on a worker, so a cell is the same wherever it was run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tqdm.auto import tqdm

from casebook.cases.model import Case
from casebook.cases.plans import planned
from casebook.cases.run import Cell, CellState, Planner, run_case
from casebook.catalog.releases import load_releases
from casebook.catalog.releases import release as find_release
from casebook.errors import StoreError
from casebook.runs import tasks
from casebook.runs.store import Store


@dataclass(frozen=True)
class Group:
    """Cases on one release, whose launches share a simulated GPU."""

    release: str
    gpu: str
    cases: tuple[Case, ...]
    planner: Planner | None

    @property
    def label(self) -> str:
        """How an error names it."""
        return f"the cases on SGLang {self.release}, {self.gpu}"

    @property
    def key(self) -> str:
        """64 hex digits of all that decides its cells; the same in every checkout of one state."""
        cases = [[case.name, case.model_dump(mode="json")] for case in self.cases]
        planner = getattr(self.planner, "__qualname__", None)
        parts = [self.release, self.gpu, cases, planner, tasks.state()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def run_cases(
    cases: Iterable[Case],
    releases: Sequence[str],
    *,
    jobs: int = 2,
    planner: Planner | None = planned,
    progress: bool = True,
    scheduler: str = "",
    store: str = "",
) -> list[Cell]:
    """Each case on each release, ``jobs`` children at a time; cells in order of case, then release.

    ``scheduler`` is the address of a Dask scheduler whose workers ask instead of this machine.
    ``store``, a folder or an address, keeps the cells of each release and GPU once they are there;
    those that it holds already are not asked again.

    Raises UnknownReleaseError, the errors of ``trace`` for a launch that cannot be asked at all,
    SchedulerError and StoreError.
    """
    cases = list(cases)
    chosen = [find_release(name).version for name in releases]
    groups = _groups(cases, chosen, planner)
    place = Store.of(store) if store else None
    found: dict[tuple[str, str], Cell] = {}
    with (
        tasks.connection(scheduler) as client,
        tqdm(total=len(cases) * len(chosen), unit="cell", disable=not progress) as bar,
    ):

        def take(cells: Iterable[Cell]) -> None:
            for cell in cells:
                found[cell.case.name, cell.release] = cell
                bar.update()

        waiting = []
        for group in groups:
            known = _kept(place, group) if place else None
            if known is None:
                waiting.append(group)
            else:
                take(known)
        ended = _here(waiting, jobs) if client is None else _there(client, waiting, place)
        with closing(ended):
            for group, cells in ended:
                if place:
                    _keep(place, group, cells)
                take(cells)
    return [found[case.name, name] for case in cases for name in chosen]


def ask(group: Group) -> list[Cell]:
    """The group's cells, one after the other."""
    return [run_case(case, group.release, planner=group.planner) for case in group.cases]


def _groups(cases: Sequence[Case], releases: Sequence[str], planner: Planner | None) -> list[Group]:
    """Long groups first would leave a core idle less, but one release after the other keeps its
    sources in memory."""
    found: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        for name in releases:
            found.setdefault((name, case.gpu), []).append(case)
    order = list(load_releases())
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1]))
    return [Group(*key, tuple(found[key]), planner) for key in keys]


def _here(groups: Sequence[Group], jobs: int) -> Generator[tuple[Group, list[Cell]]]:
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        asked = {pool.submit(ask, group): group for group in groups}
        try:
            for done in as_completed(asked):
                yield asked[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _there(
    client: Any, groups: Sequence[Group], place: Store | None
) -> Generator[tuple[Group, list[Cell]]]:
    advice = (
        "what has ended is kept, and the same command goes on from there"
        if place
        else "run this again (with --store, what has ended is kept)"
    )
    answers = tasks.over(client, ask, groups, label=lambda group: group.label, advice=advice)
    for position, cells in answers:
        yield groups[position], cells


def _keep(place: Store, group: Group, cells: Sequence[Cell]) -> None:
    rows = [
        {"state": str(c.state), "detail": c.detail, "trail": c.trail, "asked": c.asked}
        for c in cells
    ]
    try:
        place.keep(group.key, {"release": group.release, "gpu": group.gpu, "cells": rows})
    except OSError as error:
        raise StoreError(
            f"{place.root} could not be written ({error.strerror}); see to the disk, or name another "
            "folder."
        ) from error


def _kept(place: Store, group: Group) -> list[Cell] | None:
    """The cells that the store holds of this very group; None if it holds none that are sound."""
    record = place.record(group.key)
    try:
        return [
            Cell(
                case,
                group.release,
                CellState(row["state"]),
                str(row["detail"]),
                str(row["trail"]),
                bool(row["asked"]),
            )
            for case, row in zip(group.cases, record["cells"], strict=True)
        ]
    except (KeyError, TypeError, ValueError):
        return None
