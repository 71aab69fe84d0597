"""Plans, sweeps and recommendations: the incident's other half."""

from __future__ import annotations

import pandas as pd
import pytest
from click.testing import CliRunner

from casebook.catalog.gpus import GIB
from casebook.cli import cli
from casebook.errors import MemoryPlanError
from casebook.launch import Launch
from casebook.measure import Calibration
from casebook.memory import plan, recommend, strategies, sweep
from casebook.memory.commands import text
from casebook.memory.form import ledger_html
from casebook.memory.pictures import frontier, ledger_bars
from casebook.memory.plan import MemoryPlan
from casebook.resolution.trace import trace

pytestmark = pytest.mark.capsule

QWEN = "python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B"
INCIDENT = f"{QWEN} --speculative-algorithm NEXTN --mamba-scheduler-strategy extra_buffer"


@pytest.fixture(scope="module")
def incident() -> MemoryPlan:
    return plan(Launch.of(INCIDENT))


def test_every_byte_is_in_the_ledger(incident: MemoryPlan) -> None:
    assert incident.verdict == "starts"
    taken = sum(e.bytes for e in incident.entries)
    assert taken + (incident.left_bytes or 0) == incident.device.total_bytes
    assert incident.of("other_buffers") < 0.2 * GIB
    assert not incident.notes


def test_the_slots_bound_the_requests(incident: MemoryPlan) -> None:
    assert (incident.requested, incident.requests) == (48, 38)
    assert incident.limit == "state slots"
    assert incident.slots_per_request == 5
    assert incident.concurrency(8192) == 38
    assert incident.concurrency(100_000) == (incident.tokens or 0) // 100_000


def test_a_trail_can_be_planned(incident: MemoryPlan) -> None:
    assert plan(trace(INCIDENT)).tokens == incident.tokens


def test_a_trail_brings_its_gpu_release_and_model() -> None:
    trail = trace(f"{QWEN} --tp-size 2", release="0.5.11", gpu="H200")
    made = plan(trail)
    assert (made.gpu, made.release) == ("H200", "0.5.11")
    elsewhere = trace(
        "--model-path /models/other --tp-size 2", model="Qwen/Qwen3.6-27B", gpu="H200"
    )
    assert plan(elsewhere).tokens == made.tokens


def test_ways_to_fail() -> None:
    low = plan(Launch.of(f"{INCIDENT} --mem-fraction-static 0.4"))
    assert (low.verdict, low.fits) == ("not enough memory", False)
    assert "increase --mem-fraction-static" in low.reason
    high = plan(Launch.of(f"{INCIDENT} --mem-fraction-static 0.95"))
    assert high.verdict == "out of memory"
    assert "draft KV cache" in high.reason
    refused = plan(Launch.of(f"{QWEN} --speculative-algorithm NEXTN"))
    assert refused.verdict == "refused"
    odd = plan(Launch.of(f"{QWEN} --tp-size 3"))
    assert (odd.verdict, odd.reason) == ("refused", "16 is not divisible by 3")
    tight = plan(Launch.of(f"{INCIDENT} --mem-fraction-static 0.9"), headroom_bytes=60 * GIB)
    assert (tight.verdict, tight.fits) == ("tight", True)


def test_a_calibration_replaces_what_is_assumed(incident: MemoryPlan) -> None:
    given = Calibration(
        before_load_bytes=2 * GIB,
        weights_bytes=60 * GIB,
        draft_weights_bytes=GIB,
        graph_bytes=3 * GIB,
    )
    made = plan(Launch.of(INCIDENT), calibration=given)
    assert made.of("weights") == 60 * GIB
    assert made.of("graphs") == 3 * GIB
    assert (made.tokens or 0) < (incident.tokens or 0)
    with pytest.raises(MemoryPlanError, match="cannot be free"):
        plan(Launch.of(INCIDENT), free_before_bytes=300 * GIB)


def test_a_sweep_shows_both_failures() -> None:
    grid = {
        "mem_fraction_static": [0.5, 0.7, 0.85, 0.95],
        "max_mamba_cache_size": [None, 48, 240, 600],
    }
    swept = sweep(INCIDENT, grid, progress=False)
    verdicts = set(swept.table["verdict"])
    assert {"starts", "not enough memory", "out of memory"} <= verdicts
    assert len(swept.table) == 16
    for index in (1, 6, 15):  # each as the release's own code has it
        point = swept.table.iloc[index]
        flags = f" --mem-fraction-static {point['mem_fraction_static']}"
        if point["max_mamba_cache_size"] is not None:
            flags += f" --max-mamba-cache-size {point['max_mamba_cache_size']}"
        made = plan(Launch.of(INCIDENT + flags))
        assert made.verdict == point["verdict"]
        if made.fits:
            assert (made.tokens, made.requests) == (point["tokens"], point["requests"])
    assert frontier(swept, "mem_fraction_static", "max_mamba_cache_size").axes


def test_what_is_no_grid() -> None:
    for grid in ({"mem_fraction_static": []}, {"mem_fraction_static": [float("nan")]}):
        with pytest.raises(MemoryPlanError):
            sweep(INCIDENT, grid, progress=False)
    with pytest.raises(MemoryPlanError, match="no finite number"):
        sweep(INCIDENT, {"max_running_requests": ["many"]}, progress=False)


def test_recommendations_are_proved() -> None:
    """Notebook 05 asks for the incident's model; a small one is constructed sooner."""
    asked = {"concurrency": 16, "context": 4096, "speculative": "NEXTN"}
    found = recommend("Qwen/Qwen3.5-4B", progress=False, **asked)
    assert found.best is not None
    assert found.best.name == "extra_buffer"
    for option in found.options:
        assert option.reason
        if option.works:
            assert option.made is not None
            assert option.made.verdict == "starts"
            assert (option.made.requests or 0) >= 16
            assert (option.made.tokens or 0) >= 16 * 4096
            assert trace(option.made.launch).outcome.starts
    assert len(found.table()) == len(found.options)
    with pytest.raises(MemoryPlanError, match="concurrency must be at least 1"):
        recommend("Qwen/Qwen3.5-4B", concurrency=0, context=1)


def test_shown(incident: MemoryPlan) -> None:
    assert "OUT OF MEMORY" not in text(incident)
    assert "bounded by state slots" in text(incident, width=90)
    assert "<table" in ledger_html(incident)
    assert ledger_bars({"one": incident}).axes


def test_the_command() -> None:
    runner = CliRunner()
    fits = runner.invoke(cli, ["fit-check", "--", *INCIDENT.split()])
    assert fits.exit_code == 0, fits.output
    assert "ssm_state" in fits.output
    fails = runner.invoke(
        cli, ["fit-check", "--json", "--", *INCIDENT.split(), "--mem-fraction-static", "0.4"]
    )
    assert fails.exit_code == 1
    assert '"verdict": "not enough memory"' in fails.output
    wrong = runner.invoke(cli, ["fit-check", "--weights", "many", "--", *INCIDENT.split()])
    assert wrong.exit_code == 2
    assert "is no size" in wrong.output


def test_slots_by_strategy() -> None:
    table = strategies(f"{QWEN} --speculative-algorithm NEXTN")
    table = table.set_index(["strategy", "overlap", "radix_cache"])
    slots, refusals = table["slots_per_request"], table["refusal"]
    assert slots["extra_buffer", True, True] == 5
    assert slots["extra_buffer", False, True] == 4
    assert slots["(no cache)", True, False] == 1
    assert pd.isna(slots["no_buffer", True, True])
    assert "not compatible with radix cache" in refusals["no_buffer", True, True]
