"""``casebook record`` with a stand-in that prints a real server's lines."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from casebook.errors import LaunchError
from casebook.ladder.record import MemorySample, Observation, observe, run_recorded

SECRET = "sk-planted-record-0001"
LINES = [
    f"server_args=ServerArgs(model_path='Qwen/Qwen3.6-27B', tp_size=1, api_key='{SECRET}')",
    "Load weight begin. avail mem=177.57 GB",
    "Load weight end. type=Qwen3_5ForConditionalGeneration, dtype=torch.bfloat16, avail mem=122.81 GB, mem usage=54.76 GB.",
    "Mamba Cache is allocated. max_mamba_cache_size: 240, conv_state size: 0.66GB, ssm_state size: 33.89GB intermediate_ssm_state_cache size: 27.56GB intermediate_conv_window_cache size: 0.54GB",
    "KV Cache is allocated. #tokens: 523312, K size: 15.97 GB, V size: 15.97 GB",
    "Memory pool end. avail mem=26.10 GB",
    "Capture cuda graph end. Time elapsed: 5.41 s. mem usage=1.10 GB. avail mem=25.00 GB.",
    "max_total_num_tokens=523312, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=48, context_len=262144, available_gpu_mem=25.00 GB",
    "The server is fired up and ready to roll!",
]


def stand_in(folder: Path, lines: list[str], status: int = 0) -> list[str]:
    """A package ``sglang`` whose server prints ``lines``, started as the real one is."""
    package = folder / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    text = f"import sys\nfor line in {lines!r}:\n    print(line, flush=True)\nsys.exit({status})\n"
    (package / "launch_server.py").write_text(text)
    return [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model-path",
        "Qwen/Qwen3.6-27B",
        "--api-key",
        SECRET,
    ]


def test_a_start_becomes_one_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_plantedtoken0002")
    out, echo = tmp_path / "m.json", io.StringIO()
    run_recorded(stand_in(tmp_path, LINES), out, echo=echo)
    text = out.read_text()
    found = json.loads(text)
    assert found["measured"]["outcome"] == "ok"
    assert found["measured"]["avail_mem_before_load_gb"] == 177.57
    assert found["measured"]["weight_load_mem_usage_gb"] == 54.76
    assert found["measured"]["max_mamba_cache_size"] == 240
    assert found["measured"]["intermediate_ssm_gb"] == 27.56
    assert found["measured"]["kv_tokens"] == 523312
    assert found["measured"]["cuda_graph_mem_usage_gb"] == 1.1
    assert found["measured"]["max_running_requests"] == 48
    assert list(found["milestones_seconds"]) == [
        "before load",
        "after load",
        "after pools",
        "after graphs",
    ]
    assert found["exit_status"] == 0
    assert found["nvml"]
    for secret in (SECRET, "hf_plantedtoken0002"):
        assert secret not in text + echo.getvalue()
    assert "fired up" in echo.getvalue()


def test_a_start_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines = [*LINES[:2], "RuntimeError: Not enough GPU memory for hybrid state cache."]
    found = run_recorded(stand_in(tmp_path, lines, 1), tmp_path / "m.json", echo=io.StringIO())
    assert found["measured"]["outcome"] == "error"
    assert found["measured"]["error_text"].startswith("RuntimeError: Not enough")
    assert found["exit_status"] == 1


def test_memory_is_sampled_once_at_each_milestone() -> None:
    seen = Observation()
    for line in LINES * 2:
        observe(line, seen, 0.0, lambda name: [MemorySample(name, 0, 1, 2, 3)])
    assert [s.milestone for s in seen.samples] == [
        "before load",
        "after load",
        "after pools",
        "after graphs",
    ]


def test_what_is_no_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="does not start an SGLang server"):
        run_recorded(["rm", "-rf", "x"], tmp_path / "m.json")
    with pytest.raises(LaunchError, match="cannot be started"):
        run_recorded(["/no/such/python", "-m", "sglang.launch_server"], tmp_path / "m.json")
