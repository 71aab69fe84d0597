"""Lines that the releases' own sizing code prints in a dry run, read back and held against its pools."""

import functools
from collections.abc import Mapping

import pytest

from casebook.capsule import store
from casebook.catalog.gpus import GIB
from casebook.measure import Measurement, read_log
from casebook.measure.fit import measured_ledger
from casebook.memory.dry_run import Device, DryRun, Sizer

pytestmark = pytest.mark.capsule

RELEASES = ("0.5.8.post1", "0.5.11", "0.5.14", "0.5.17", "0.5.20", "0.5.23")
BASE = "python -m sglang.launch_server --mem-fraction-static 0.85 --max-running-requests 48 "
HYBRID = "--model-path Qwen/Qwen3-Next-80B-A3B-Instruct --disable-radix-cache --max-mamba-cache-size 240 "
SPECULATIVE = (
    "--speculative-algorithm NEXTN --speculative-num-draft-tokens 4 --speculative-num-steps 3 "
    "--speculative-eagle-topk 1"
)
LAUNCHES = {
    "dense": "--model-path Qwen/Qwen3-8B",
    "hybrid": HYBRID,
    "hybrid with a draft": HYBRID + SPECULATIVE,
}
# A child takes seconds to start: six releases, one of each form of the lines, and the launch that prints
# most. test_every_release.py has them all.
CASES = [(release, "hybrid with a draft") for release in RELEASES] + [
    (release, kind) for release in ("0.5.11", "0.5.23") for kind in ("dense", "hybrid")
]
STATE = "req_to_token_pool.mamba_pool.mamba_cache."


@functools.cache
def sizer(release: str) -> Sizer:
    return Sizer(release, "B200")


def dry_run(release: str, words: str) -> DryRun:
    if not any(row["release"] == release and row["current"] for row in store.installed()):
        pytest.skip(f"no capsule of {release} here")
    found = sizer(release)
    device = Device(found.total_bytes, round(177.57 * GIB), 51 * GIB, 3 * GIB)
    return found.run(BASE + words, device)


def pools(run: DryRun, of: str) -> Mapping[str, int]:
    """The pools' bytes by the names of a measurement; of the draft only what is its own."""
    found: dict[str, int] = {}
    for path, size in run.pool_bytes(of).items():
        part = path.rpartition(".")[2]
        if part in ("k_buffer", "v_buffer") and path.startswith("token_to_kv_pool."):
            name = "kv" if of == "target" else "draft_kv"
            found[name] = found.get(name, 0) + size
        elif of == "target" and path.startswith(STATE):
            name = {"conv": "conv_state", "temporal": "ssm_state"}.get(part, part)
            if name in ("conv_state", "ssm_state", "intermediate_ssm"):
                found[name] = found.get(name, 0) + size
    return found


@pytest.mark.parametrize(("release", "kind"), CASES)
def test_what_the_release_prints_is_what_its_pools_are(release: str, kind: str) -> None:
    run = dry_run(release, LAUNCHES[kind])
    assert run.outcome == "resolved", run.told()
    (server,) = read_log("\n".join([*(f"[2026-10-01 12:00:00] {text}" for text in run.log), ""]))
    (rank,) = server.ranks
    check(rank, run, draft=kind == "hybrid with a draft")


def check(rank: Measurement, run: DryRun, draft: bool) -> None:
    wanted = dict(pools(run, "target"))
    assert rank.get("kv_tokens") == run.figure("max_total_num_tokens")
    assert rank.figures["weights"].agrees(51 * GIB)
    assert rank.figures["free_before_load"].agrees(round(177.57 * GIB))
    if draft:
        wanted |= pools(run, "draft")
        assert rank.figures["draft_weights"].agrees(3 * GIB)
        assert {"intermediate_ssm", "intermediate_conv", "draft_free_after_pools"} <= set(
            rank.figures
        )
    read = measured_ledger(rank)
    for name, size in wanted.items():
        assert read[name].agrees(size), (name, read[name], size)
    if "ssm_state" in wanted:
        assert rank.get("state_slots") == 240
    assert {"k", "v", "free_after_load", "free_after_pools"} <= set(rank.figures)


def test_the_known_slot_pool() -> None:
    words = HYBRID.replace("Qwen3-Next-80B-A3B-Instruct", "Qwen3.6-27B") + SPECULATIVE
    run = dry_run("0.5.11", words)
    (server,) = read_log("\n".join([*run.log, ""]))
    (rank,) = server.ranks
    names = ("conv_state", "ssm_state", "intermediate_ssm", "intermediate_conv")
    assert [round(rank.figures[n].value / GIB, 2) for n in names] == [0.66, 33.89, 27.56, 0.54]
