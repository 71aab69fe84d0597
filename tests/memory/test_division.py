"""The closed form by itself: known figures, and laws that every division must keep."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casebook.catalog.gpus import GIB
from casebook.errors import MemoryPlanError
from casebook.memory import closed_form
from casebook.memory.closed_form import UNSET, Knobs, footprint, size
from casebook.memory.facts import RankFacts, StateFacts
from casebook.memory.rules import rules_of

# Qwen3.6-27B, one rank: 48 state layers of 10240 x 3 and 48 x 128 x 128, 16 attention layers.
STATE = StateFacts(
    layers=48,
    sized_bytes=153_944_064,
    conv_bytes=2_949_120,
    ssm_bytes=150_994_944,
    ssm_dtype="float32",
    extra_bytes=0,
    conv_shapes=((10240, 3),),
    conv_itemsize=2,
    shared_windows=False,
    window_axis=1,
)
FACTS = RankFacts(
    release="0.5.11",
    context_tokens=262_144,
    page_tokens=1,
    kv_sized_bytes=65_536,
    kv_row_bytes=65_536,
    kv_tensors=32,
    draft_row_bytes=4096,
    draft_tensors=2,
    slots_per_request=5,
    dp_size=1,
    ranks=1,
    draft_tokens=4,
    radix_cache=True,
    table_columns=262_152,
    table_padding_rows=1,
    fixed_overhead_bytes=0,
    multimodal_reserve_gib=0.0,
    state=STATE,
)
BEFORE, AFTER = round(177.57 * GIB), round(126.5 * GIB)


def _size(facts: RankFacts = FACTS, **knobs: object) -> dict[str, object]:
    held = {"free_before_bytes": BEFORE, "free_after_bytes": AFTER, "mem_fraction_static": 0.85}
    return size(facts, Knobs(**{**held, **knobs})).at(0)


def test_the_incidents_figures() -> None:
    """240 slots, 48 requests, 4 draft tokens: what SGLang 0.5.11 logs for its pools."""
    made = _size(max_mamba_cache_size=240, max_running_requests=48)
    assert made["outcome"] == "starts"
    gib = {name: round(int(made[name]) / GIB, 2) for name in made if name.endswith("_bytes")}
    assert gib["conv_bytes"] == 0.66
    assert gib["ssm_bytes"] == 33.89
    assert gib["intermediate_ssm_bytes"] == 27.56
    assert gib["intermediate_conv_bytes"] == 0.54
    assert (made["requests"], made["limit"]) == (48, "--max-running-requests")


def test_asked_for_48_and_got_9() -> None:
    made = _size(max_mamba_cache_size=48, max_running_requests=48)
    assert (made["requests"], made["limit"]) == (9, "state slots")


def test_windows_that_overlap_are_smaller() -> None:
    shared = dataclasses.replace(STATE, shared_windows=True)
    assert STATE.intermediate_conv_bytes(4) == 4 * STATE.conv_bytes
    assert shared.intermediate_conv_bytes(4) == STATE.conv_bytes * 6 // 3


@pytest.mark.parametrize("release", ["0.5.9", "0.5.11", "0.5.13", "0.5.16", "0.5.17", "0.5.23"])
@settings(max_examples=60, deadline=None)
@given(
    fraction=st.floats(0.2, 0.99),
    slots=st.sampled_from([UNSET, 1, 50, 240, 900]),
    requests=st.integers(1, 4096),
    ratio=st.floats(0.05, 5),
)
def test_laws(release: str, fraction: float, slots: int, requests: int, ratio: float) -> None:
    facts = dataclasses.replace(FACTS, release=release)
    made = _size(
        facts,
        mem_fraction_static=np.array([fraction, min(fraction + 0.005, 0.995)]),
        max_mamba_cache_size=slots,
        max_running_requests=requests,
        mamba_full_memory_ratio=ratio,
    )
    if made["outcome"] != "starts":
        return
    pools = sum(int(made[name]) for name in closed_form._POOLS)
    assert pools + int(made["left_bytes"]) <= AFTER
    assert int(made["left_bytes"]) >= 0
    assert 0 < int(made["requests"]) <= requests
    assert int(made["requests"]) * FACTS.slots_per_request <= int(made["slots"])
    assert int(made["tokens"]) * FACTS.kv_sized_bytes <= int(made["rest_bytes"])


@settings(max_examples=40, deadline=None)
@given(fraction=st.floats(0.3, 0.9), more=st.floats(0.001, 0.08))
def test_a_larger_fraction_never_gives_fewer_tokens_at_a_given_cap(
    fraction: float, more: float
) -> None:
    low = _size(mem_fraction_static=fraction, max_mamba_cache_size=100, max_running_requests=20)
    high = _size(
        mem_fraction_static=fraction + more, max_mamba_cache_size=100, max_running_requests=20
    )
    if low["outcome"] == high["outcome"] == "starts":
        assert int(high["tokens"]) >= int(low["tokens"])


def test_points_are_independent_of_their_neighbours() -> None:
    fractions = np.linspace(0.3, 0.99, 300)
    together = size(FACTS, Knobs(BEFORE, AFTER, fractions))
    for index in (0, 17, 150, 299):
        assert together.at(index) == size(FACTS, Knobs(BEFORE, AFTER, fractions[index])).at(0)


def test_a_dense_model_has_no_slots() -> None:
    made = _size(
        dataclasses.replace(FACTS, state=None, draft_tokens=0, draft_row_bytes=0, draft_tensors=0)
    )
    assert (made["slots"], made["ssm_bytes"]) == (0, 0)
    assert made["outcome"] == "starts"


def test_ranks_agree_over_a_float32() -> None:
    one = _size(free_after_bytes=AFTER + 12_345)
    several = _size(dataclasses.replace(FACTS, ranks=2), free_after_bytes=AFTER + 12_345)
    assert one["rest_bytes"] != several["rest_bytes"]


def test_footprint() -> None:
    assert footprint(np.array([10]), 1)[0] == 10
    assert footprint(np.array([11 << 20]), 1)[0] == 12 << 20
    assert footprint(np.array([22 << 20]), 2)[0] == 24 << 20
    assert footprint(np.array([5]), 0)[0] == 0


def test_a_release_that_was_never_checked() -> None:
    with pytest.raises(MemoryPlanError, match="use the dry run"):
        rules_of("0.6.0")
