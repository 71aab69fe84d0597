"""A real capsule's child: what it can reach, and that launches do not touch each other."""

import gc
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casebook import capsule as capsules
from casebook.catalog.gpus import gpu
from casebook.catalog.hub import hub_for_catalog
from casebook.errors import WorkerError
from casebook.sandbox import Limits, Worker

pytestmark = pytest.mark.capsule

MODEL = "Qwen/Qwen3.6-27B"
ARGV = ["--model-path", MODEL]
INCIDENT = [*ARGV, "--speculative-algorithm", "NEXTN"]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    device = gpu("B200").as_device(8)
    held = capsules.ensure("0.5.11")
    with Worker(held, device, hub_for_catalog(), env={"AT_IMPORT": "1"}, warmup=[ARGV]) as started:
        yield started


@pytest.fixture(autouse=True)
def the_next_launch_works(worker: Worker) -> Iterator[None]:
    yield
    assert resolve(worker)["outcome"] == {"kind": "resolved"}


def resolve(worker: Worker, *words: str, limits: Limits | None = None, **request: Any) -> Any:
    return worker.call("resolve", limits, argv=[*ARGV, *words], **request)


def test_what_can_be_imported(worker: Worker) -> None:
    strangers = [
        "papermill",
        "pytest",
        "jupyterlab",
        "matplotlib",
        "hypothesis",
        "casebook",
        "click_",
    ]
    ours = ["numpy", "transformers", "sglang", "huggingface_hub"]
    answer = worker.call("probe", modules=[*strangers, *ours, "torch", "sympy"])
    found = answer["modules"]
    assert {name: found[name] for name in strangers} == dict.fromkeys(strangers)
    site = str(worker.capsule.site)
    for name in ours:
        assert found[name].startswith(site), name
    assert found["torch"]
    assert not found["torch"].startswith(site)
    assert not any("site-packages" in path for path in answer["path"])


def test_the_network_is_refused(worker: Worker) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        answer = worker.call("probe", connect=list(listener.getsockname()))
    confined = worker.ready["confined"]
    refused = answer["refused"]
    for act in ("connect", "send a datagram", "look up"):
        assert "no network" in refused[act]
    assert refused["connect by libc"] or not any(confined.values())


def test_writing_is_refused(worker: Worker, tmp_path: Path) -> None:
    target = tmp_path / "written"
    answer = worker.call("probe", write=str(target), cwd=str(tmp_path))
    assert "scratch folder" in answer["refused"]["write"]
    if worker.ready["confined"]["files"]:
        assert answer["refused"]["write by libc"]
        assert not target.exists()
    # Not even the capsule, the log or the tools that answer for the GPU.
    for path in (worker.capsule.site / "sglang" / "x.py", *worker._held.scratch.glob("shims/*")):
        assert worker.call("probe", write=str(path))["refused"]["write"]
    home = answer["environment"]["HOME"]
    allowed = worker.call("probe", write=str(Path(home, "mine")))
    assert set(allowed["refused"].values()) == {None}


def test_a_checkpoint_s_code_is_not_run(worker: Worker, tmp_path: Path) -> None:
    code = "print('THE CHECKPOINT RAN')\nclass C: pass\n"
    (tmp_path / "configuration_evil.py").write_text(code, "utf-8")
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "configuration_evil.C"}}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    argv = ["--model-path", str(tmp_path), "--trust-remote-code"]
    answer = worker.call("resolve", argv=argv)
    assert answer["outcome"]["kind"] == "raised"
    assert "runs no code from a checkpoint" in json.dumps(answer["outcome"])
    assert "THE CHECKPOINT RAN" not in answer["output"]


def test_the_incident_is_an_outcome(worker: Worker) -> None:
    outcome = worker.call("resolve", argv=INCIDENT)["outcome"]
    assert (outcome["kind"], outcome["type"]) == ("raised", "ValueError")


def test_the_environment_of_a_launch_does_not_reach_the_next(worker: Worker) -> None:
    env = {"SGLANG_TOY": "secret", "PATH": "/evil", "LD_PRELOAD": "/evil.so", "HOME": "/evil"}
    first = worker.call("probe", env=env)["environment"]
    assert first["SGLANG_TOY"] == "secret"
    assert "/evil" not in json.dumps(first)
    second = worker.call("probe")["environment"]
    assert "SGLANG_TOY" not in second
    assert second["AT_IMPORT"] == "1"
    assert not {"SSH_AUTH_SOCK", "VIRTUAL_ENV"} & set(second)


def test_a_launch_that_hangs(worker: Worker, tmp_path: Path) -> None:
    fifo = tmp_path / "config.yaml"
    os.mkfifo(fifo)  # reading it waits for a writer that never comes
    answer = resolve(worker, "--config", str(fifo), limits=Limits(seconds=0.3))
    assert answer["outcome"]["kind"] == "timeout"


def test_a_launch_without_memory(worker: Worker) -> None:
    answer = resolve(worker, limits=Limits(memory_bytes=0))
    assert answer["outcome"]["kind"] in ("raised", "died", "resolved")
    answer = resolve(
        worker, "--config", "/dev/zero", limits=Limits(seconds=20, memory_bytes=1 << 28)
    )
    assert answer["outcome"]["kind"] in ("raised", "died", "timeout", "exit")


def test_words_that_argparse_refuses(worker: Worker) -> None:
    answer = resolve(worker, "--no-such-flag", b"\xff".decode("utf-8", "surrogateescape"))
    assert answer["outcome"] == {"kind": "exit", "code": 2}
    assert "--no-such-flag" in answer["command_line"]["refusal"]
    long = resolve(worker, "--served-model-name", "x" * 1_000_000)
    assert long["outcome"]["kind"] in ("resolved", "raised")


def test_an_abandoned_map_harms_nobody(worker: Worker) -> None:
    requests = [{"argv": ARGV} for _ in range(6)]
    started = worker.map("resolve", requests, jobs=2)
    next(started)
    assert resolve(worker)["outcome"]["kind"] == "resolved"  # while it is still held
    rest = sorted(position for position, _ in started)
    assert len(rest) == 5
    dropped = worker.map("resolve", requests, jobs=2)
    next(dropped)
    del dropped
    gc.collect()


def test_a_map_inside_a_map(worker: Worker) -> None:
    kinds = [
        resolve(worker)["outcome"]["kind"]
        for _, answer in worker.map("resolve", ({"argv": ARGV} for _ in range(3)), jobs=0)
        if answer["outcome"]["kind"] == "resolved"
    ]
    assert kinds == ["resolved"] * 3


def test_the_same_launch_gives_the_same_answer_in_another_child(worker: Worker) -> None:
    # Sets print in one order: what they hash to is the same in every child.
    first = worker.call("probe")["hash"]
    device = gpu("B200").as_device(8)
    with Worker(worker.capsule, device, hub_for_catalog()) as other:
        assert other.call("probe")["hash"] == first
        scratch, process = other._held.scratch, other._held.process
        assert other.alive
        other.close()
        assert not other.alive
        assert process is not None
        assert process.returncode == 0
        assert not scratch.exists()
        with pytest.raises(WorkerError):
            other.call("probe")


def test_a_child_that_dies_between_launches() -> None:
    device = gpu("B200").as_device(8)
    worker = Worker(capsules.ensure("0.5.11"), device, hub_for_catalog())
    assert worker._held.process is not None
    worker._held.process.kill()
    with pytest.raises(WorkerError, match="run the launch again"):
        worker.call("probe")
    assert not worker.alive


def test_a_child_that_cannot_start(tmp_path: Path) -> None:
    from dataclasses import replace

    held = replace(capsules.ensure("0.5.11"), python=tmp_path / "no-python")
    with pytest.raises(WorkerError, match="no-python"):
        Worker(held, gpu("B200").as_device(1), hub_for_catalog())
