"""Any work on a cluster: functions, cases and sweeps give what they give here, whoever dies on the way."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("distributed")

from loopback_cluster import Cluster

from casebook import memory
from casebook.cases import batch, named, run_cases
from casebook.cases.run import Plan
from casebook.cli import main
from casebook.errors import (
    CasebookError,
    CaseError,
    LaunchError,
    SchedulerError,
    StoreError,
    UnknownModelError,
    WorkerError,
)
from casebook.resolution.sweep import sweep
from casebook.runs import tasks

QWEN = "python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B"
NOWHERE = "tcp://127.0.0.1:1"


def _killer(mark: Path, victim: int = 0) -> Callable[[], None]:
    """Kills the process that calls it (or ``victim``), the first time that it is called at all."""

    def kill() -> None:
        if not mark.exists():
            mark.touch()
            os.kill(victim or os.getpid(), signal.SIGKILL)

    return kill


def _same(table: pd.DataFrame, other: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(table, other)


def _failing(*errors: CasebookError | OSError) -> tuple[Callable[[int], int], list[int]]:
    """A function that raises each of ``errors`` once, and what it was asked."""
    waiting, asked = list(errors), []

    def double(item: int) -> int:
        asked.append(item)
        if waiting:
            raise waiting.pop(0)
        return 2 * item

    return double, asked


def _case_error() -> CaseError:
    error = CaseError("The case small cannot be asked.")
    error.__cause__ = WorkerError("The child died.")
    return error


@pytest.mark.parametrize(
    "error", [WorkerError("The child died."), OSError("disk"), _case_error()], ids=str
)
def test_a_fault_of_the_surroundings_is_tried_again(error: CasebookError | OSError) -> None:
    function, asked = _failing(error)
    assert tasks.answer(function, 4, tasks.state(), 1) == 8
    assert asked == [4, 4]
    function, _ = _failing(error, error)
    with pytest.raises(type(error)):
        tasks.answer(function, 4, tasks.state(), 1)


def test_an_answer_is_not_tried_again() -> None:
    function, asked = _failing(LaunchError("No launch."))
    with pytest.raises(LaunchError):
        tasks.answer(function, 4, tasks.state(), 5)
    assert asked == [4]


def test_another_state_of_the_code_refuses() -> None:
    function, asked = _failing()
    version, code, packages = tasks.state()
    for other in ([version, "0", packages], [version, code, {**packages, "numpy": "0"}]):
        with pytest.raises(SchedulerError, match="refuses: it has another state of casebook"):
            tasks.answer(function, 4, other, 1)
    assert asked == []


def test_errors_come_back_from_another_process_as_they_were() -> None:
    error = UnknownModelError("model", "Qwen/Nope", ["Qwen/Qwen3.6-27B"], "Look.")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.known) == (UnknownModelError, str(error), error.known)


@pytest.mark.slow
def test_a_killed_worker_loses_no_item(cluster: Cluster, tmp_path: Path) -> None:
    kill, notes = _killer(tmp_path / "killed"), tmp_path / "ended"

    def square(item: int) -> int:
        if item == 5:
            kill()
        with notes.open("a") as file:
            file.write(f"{item}\n")
        return item * item

    with tasks.connection(cluster.address) as client:
        found = list(tasks.over(client, square, range(12)))
    assert sorted(found) == [(n, n * n) for n in range(12)]
    assert {p.poll() for p in cluster.workers} == {None, -signal.SIGKILL}
    assert set(notes.read_text().split()) == {str(n) for n in range(12)}


@pytest.mark.slow
def test_an_answer_that_dies_with_its_worker_before_it_is_read_is_made_again(
    cluster: Cluster,
) -> None:
    """The client hears of the end, then of the loss; that is no word of the scheduler's."""
    from distributed import wait

    with tasks.connection(cluster.address) as client, client.as_current():
        (address, holder), (_, other) = client.run(os.getpid).items()
        futures = {
            client.submit(
                abs, -item, key=f"item-{item}", workers=[address], allow_other_workers=True
            ): item
            for item in range(6)
        }
        wait(list(futures))
        found = tasks.settled(client, futures, str, "")
        ended = [next(found)]
        os.kill(other, signal.SIGSTOP)  # so that the loss lasts until it is seen
        os.kill(holder, signal.SIGKILL)
        while any(future.status == "finished" for future in futures):
            client.nthreads()  # a round trip to the scheduler
        os.kill(other, signal.SIGCONT)
        ended += found
    assert sorted(ended) == [(item, item) for item in range(6)]


@pytest.mark.slow
def test_a_scheduler_that_dies_between_an_end_and_its_answer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import wait

    monkeypatch.setattr(tasks, "CONNECT_SECONDS", 5)
    with tasks.connection(cluster.address) as client, client.as_current():
        futures = {client.submit(abs, -item, key=f"item-{item}"): item for item in range(6)}
        wait(list(futures))
        found = tasks.settled(client, futures, str, "look there")
        next(found)
        cluster.scheduler.kill()
        with pytest.raises(SchedulerError, match="went away; look there"):
            list(found)


@pytest.mark.slow
@pytest.mark.capsule
def test_cases_on_a_cluster_are_the_cases_here(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, script, launch = named(
        ["kimi-k3-weights-do-not-fit", "crlf-line-ends", "page-size-one-for-no-buffer"]
    )
    cases = [
        plan,
        script,
        launch.model_copy(update={"releases": "==0.5.11"}),
    ]  # one child is enough
    releases, kill = ["0.5.23", "0.5.11"], _killer(tmp_path / "killed")

    def planner(*_: Any, **__: Any) -> Plan:
        kill()
        return Plan(False, "GPUs are 9 GB short.")

    store = str(tmp_path / "store")
    options: dict[str, Any] = {"planner": planner, "progress": False}
    there = run_cases(cases, releases, scheduler=cluster.address, store=store, **options)
    assert {p.poll() for p in cluster.workers} == {None, -signal.SIGKILL}
    assert there == run_cases(cases, releases, **options)
    assert [(c.case.name, c.release) for c in there] == [
        (case.name, release) for case in cases for release in releases
    ]
    # What is kept is not asked again.
    monkeypatch.setattr(batch, "ask", None)
    assert run_cases(cases, releases, store=store, **options) == there


@pytest.mark.slow
def test_a_scheduler_that_dies_under_a_case_run(cluster: Cluster, tmp_path: Path) -> None:
    cases = named(["crlf-line-ends", "kimi-k3-weights-do-not-fit"])
    kill = _killer(tmp_path / "killed", cluster.scheduler.pid)

    def planner(*_: Any, **__: Any) -> Plan:
        kill()
        return Plan(False, "GPUs are 9 GB short.")

    with pytest.raises(SchedulerError, match=r"went away; run this again \(with --store"):
        run_cases(cases, ["0.5.23"], planner=planner, progress=False, scheduler=cluster.address)


@pytest.mark.slow
def test_a_worker_with_other_code_refuses(
    shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "state", lambda: ["another commit"])
    with pytest.raises(SchedulerError, match=r"The worker tcp://\S+ refuses: it has another state"):
        run_cases(
            named(["crlf-line-ends"]), ["0.5.11"], progress=False, scheduler=shared_cluster.address
        )


@pytest.mark.slow
def test_work_that_a_worker_cannot_read_is_said_in_a_sentence(shared_cluster: Cluster) -> None:
    def fails(item: int) -> int:
        raise ZeroDivisionError(item)

    with (
        tasks.connection(shared_cluster.address) as client,
        pytest.raises(SchedulerError, match=r"A worker could not run 7 \(ZeroDivisionError: 7\)"),
    ):
        list(tasks.over(client, fails, [7]))


@pytest.mark.slow
@pytest.mark.capsule
def test_a_sweep_on_a_cluster_is_the_sweep_here(shared_cluster: Cluster) -> None:
    grid = {"--page-size": [None, 16, 64], "--speculative-algorithm": [None, "NEXTN"]}
    options: dict[str, Any] = {"fields": ["page_size", "max_running_requests"], "progress": False}
    here = sweep(QWEN, grid, **options)
    _same(sweep(QWEN, grid, **options, scheduler=shared_cluster.address), here)
    with pytest.raises(UnknownModelError, match="Qwen/Nope"):
        sweep(QWEN, grid, model="Qwen/Nope", progress=False, scheduler=shared_cluster.address)


@pytest.mark.slow
@pytest.mark.capsule
def test_a_memory_sweep_on_a_cluster_is_the_sweep_here(shared_cluster: Cluster) -> None:
    grid = {"kv_cache_dtype": ["auto", "fp8_e4m3"], "mem_fraction_static": [0.4, 0.8, 0.95]}
    here = memory.sweep(QWEN, grid, progress=False)
    there = memory.sweep(QWEN, grid, progress=False, scheduler=shared_cluster.address)
    _same(there.table, here.table)
    assert list(there.plans) == list(here.plans)
    for shape, plan in here.plans.items():
        _same(there.plans[shape].table(), plan.table())
        assert there.plans[shape].verdict == plan.verdict


@pytest.mark.parametrize("words", [["--scheduler", NOWHERE], ["--scheduler", "nonsense"]])
def test_no_scheduler_is_a_sentence_and_exit_code_3(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "CONNECT_SECONDS", 0.5)
    with pytest.raises(SystemExit) as stop:
        main(["case", "run", "crlf-line-ends", "--releases", "0.5.11", *words])
    out, err = capfd.readouterr()
    assert (stop.value.code, out) == (3, "")
    assert err.startswith(f"casebook: No Dask scheduler answers at {words[1]!r}; start one")
    assert len(err.splitlines()) == 1


def test_sweeps_ask_the_scheduler_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CONNECT_SECONDS", 0.5)
    with pytest.raises(SchedulerError, match="No Dask scheduler answers"):
        sweep(QWEN, {"--page-size": [1]}, progress=False, scheduler=NOWHERE)
    with pytest.raises(SchedulerError, match="No Dask scheduler answers"):
        memory.sweep(QWEN, {"tp": [1]}, progress=False, scheduler=NOWHERE)


def test_a_store_of_cases_keeps_what_is_sound(tmp_path: Path) -> None:
    cases, store = named(["crlf-line-ends"]), tmp_path / "store"
    options: dict[str, Any] = {"progress": False, "store": str(store)}
    cells = run_cases(cases, ["0.5.11"], **options)
    (record,) = (store / "records").iterdir()
    for broken in ('{"cells": []}', "[", '{"cells": [{"state": "odd"}]}'):
        record.write_text(broken)
        assert run_cases(cases, ["0.5.11"], **options) == cells
    # Another case is another record, and a place that is a file is no store.
    other = [cases[0].model_copy(update={"mend": "Something else."})]
    run_cases(other, ["0.5.11"], **options)
    assert len(list((store / "records").iterdir())) == 2
    with pytest.raises(StoreError, match="could not be written"):
        run_cases(cases, ["0.5.11"], progress=False, store=str(record))
