"""`casebook fit` plans the launch that a log names, and says which part of the plan was off."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from casebook.cli import cli
from casebook.measure import MeasurementError
from casebook.measure.predict import launch_of

ARGUMENTS = {
    "model_path": "Qwen/Qwen3.6-27B",
    "tp_size": 1,
    "mem_fraction_static": 0.8,
    "max_running_requests": 48,
    "mamba_scheduler_strategy": "extra_buffer",
    "disable_radix_cache": False,
    "disable_overlap_schedule": True,
    "port": 30000,
    "api_key": "not needed",
    "kv_cache_dtype": None,
}


def test_the_arguments_of_a_log_become_a_launch_with_what_memory_depends_on() -> None:
    words = launch_of(ARGUMENTS, "0.5.11").argv
    assert words[:2] == ("--model-path", "Qwen/Qwen3.6-27B")
    assert "--disable-overlap-schedule" in words and "--disable-radix-cache" not in words
    assert words[words.index("--mamba-scheduler-strategy") + 1] == "extra_buffer"
    assert not {"--port", "--api-key", "--kv-cache-dtype"} & set(words)


def test_an_argument_that_the_release_has_not_is_left_out() -> None:
    assert "extra_buffer" not in launch_of(ARGUMENTS, "0.5.23").argv


def test_no_model() -> None:
    with pytest.raises(MeasurementError, match="give the launch"):
        launch_of({"tp_size": 1}, "0.5.11")


@pytest.mark.capsule
def test_fit_says_what_was_off(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lines = (
        "server_args=ServerArgs(model_path='Qwen/Qwen3-8B', mem_fraction_static=0.854, tp_size=1)",
        "Load weight begin. avail mem=177.57 GB",
        "Load weight end. elapsed=1.97 s, type=Qwen3ForCausalLM, avail mem=162.30 GB, mem usage=15.28 GB.",
        "KV Cache is allocated. #tokens: 992896, K size: 68.18 GB, V size: 68.18 GB",
        "Memory pool end. avail mem=20.26 GB",
    )
    log.write_text("".join(f"[2026-04-27 02:36:06] {line}\n" for line in lines))
    asked = ["fit", "--gpu", "B200", "--release", "0.5.10.post1", str(log)]
    result = CliRunner().invoke(cli, asked)
    assert result.exit_code == 1, result.output
    assert "fitted weights_bytes" in result.output
    assert "free_after_pools" in result.output and "less than planned" in result.output
    assert "off   weights" not in result.output
