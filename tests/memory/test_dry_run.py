"""A release's own sizing, on memory that is only counted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casebook.catalog.gpus import GIB
from casebook.catalog.models import model
from casebook.errors import MemoryPlanError
from casebook.memory.dry_run import Device, Sizer, dry_run
from casebook.memory.facts import state_path

pytestmark = pytest.mark.capsule

QWEN = "python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B"
INCIDENT = f"{QWEN} --speculative-algorithm NEXTN --mamba-scheduler-strategy extra_buffer"
B200 = Device(round(178.36 * GIB), round(177.57 * GIB), round(51.2 * GIB), round(0.8 * GIB))


def test_sglangs_own_log_line() -> None:
    run = dry_run(f"{INCIDENT} --max-mamba-cache-size 240", device=B200)
    assert run.outcome == "resolved"
    (line,) = [text for text in run.log if text.startswith("Mamba Cache is allocated")]
    assert "max_mamba_cache_size: 240, conv_state size: 0.66GB, ssm_state size: 33.89GB" in line
    assert "intermediate_ssm_state_cache size: 27.56GB" in line
    assert "intermediate_conv_window_cache size: 0.54GB" in line
    assert run.figure("max_running_requests") == 48
    assert run.pool_bytes()[state_path("temporal")] == 241 * 150_994_944


def test_one_slot_is_146_mib() -> None:
    state = dry_run(QWEN).facts.state
    assert state is not None
    assert (state.conv_bytes + state.ssm_bytes) / 2**20 == 146.8125


def test_the_model_is_constructed_and_weighed() -> None:
    run = dry_run(INCIDENT, device=Device(B200.total_bytes, B200.free_before_bytes))
    weights, draft = int(run.raw["weights_bytes"]), int(run.raw["draft_weights_bytes"])
    # 27.36 billion parameters in two bytes; the draft brings its own embedding and head of 2.37 GiB.
    assert 50.9 < weights / GIB < 51.2
    assert 5.4 < draft / GIB < 5.7
    assert "visual.blocks" in run.raw["weights"]["by_part"]


def test_free_memory_falls_by_what_is_built() -> None:
    run = dry_run(INCIDENT, device=B200)
    pools = sum(run.pool_bytes().values())
    taken = int(run.raw["after_load_bytes"]) - run.figure("free_bytes")
    assert 0 <= taken - pools < 0.1 * GIB
    assert any(text.startswith("Memory pool end. avail mem=") for text in run.log)


def test_a_pool_that_does_not_fit_is_refused_as_a_device_would() -> None:
    run = dry_run(f"{INCIDENT} --mem-fraction-static 0.985", device=B200)
    assert run.raw["refused"]["bytes"] > run.raw["refused"]["free_bytes"]
    assert "CUDA out of memory" in run.message


def test_what_the_arguments_refuse_never_comes_to_memory() -> None:
    run = dry_run(f"{QWEN} --speculative-algorithm NEXTN", device=B200)
    assert run.raw["stage"] == "arguments"
    assert "no_buffer" in run.message
    with pytest.raises(MemoryPlanError, match="did not come to size any memory"):
        _ = run.facts
    with pytest.raises(MemoryPlanError, match="has no max_total_num_tokens"):
        run.figure("max_total_num_tokens")


def test_an_architecture_that_sglang_does_not_know() -> None:
    device = Device(B200.total_bytes, B200.free_before_bytes)
    run = dry_run("python -m sglang.launch_server --model-path ai21labs/Jamba-v0.1", device=device)
    assert "has no SGlang implementation" in run.message
    assert not run.reached_pools


def test_a_pipeline_stage_has_its_own_layers() -> None:
    launch = "python -m sglang.launch_server --model-path Qwen/Qwen3-Next-80B-A3B-Instruct"
    sizer = Sizer("0.5.11")
    whole = sizer.run(launch).facts
    halves = [sizer.run(f"{launch} --pp-size 2", pp_rank=rank).facts for rank in (0, 1)]
    assert whole.state is not None
    assert sum(h.state.layers for h in halves if h.state) == whole.state.layers
    assert sum(h.kv_row_bytes for h in halves) == whole.kv_row_bytes


def test_asking_twice_is_the_same_answer() -> None:
    sizer = Sizer("0.5.11")
    assert sizer.run(QWEN, B200) is sizer.run(QWEN, B200)


def test_a_checkpoint_that_changed_is_asked_again(tmp_path: Path) -> None:
    config = model("Qwen/Qwen3.6-27B").config()
    slots = []
    for dtype in ("float32", "bfloat16"):
        config["text_config"]["mamba_ssm_dtype"] = dtype
        (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
        slots.append(dry_run(["--model-path", str(tmp_path)]).facts.slot_bytes)
    assert slots == [153_944_064, 153_944_064 - 150_994_944 // 2]
