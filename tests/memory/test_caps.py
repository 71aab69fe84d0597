"""\"I asked for 32, I got 9\": every report of the collection is explained by the name of its limit."""

from __future__ import annotations

import pytest

from casebook.measure import published, published_start
from casebook.memory.caps import FLAG, KV_CACHE, STATE_SLOTS, cap_of, caps, caps_table

REPORTS = {  # who asked -> row of the collection, requests that ran
    "sglang#30160": ("h100-qwen36-35b-fp8-cap", 50),
    "sglang#36310": ("rtxpro6000-qwen36-35b-fp8-eagle", 37),
    "sglang#36889": ("gb10x2-glm53flash-dflash2-cap", 2),
    "sglang#38846": ("rtx6000ada-qwopus27b-fp8", 9),
    "DGX-Spark#7": ("gb10-qwen38-27b-dflash2-cap12", 12),
    "Dual-DGX-Sparks#8": ("gb10x2-flashnext-f070", 5),
    "club-3090#1319": ("rtx3090x2-qwen38-27b-dflash2-int4", 6),
    "rtxpro6000#5": ("rtxpro6000-mmcs40", 8),
}


@pytest.mark.parametrize("name", REPORTS)
def test_every_report_is_explained_by_the_state_slots(name: str) -> None:
    row, got = REPORTS[name]
    cap = cap_of(published_start(row))
    assert cap is not None and cap.got == got
    assert cap.limit == STATE_SLOTS
    assert str(got) in cap.sentence and "state slots" in cap.sentence
    if cap.slots is not None and cap.slots_per_request is not None:
        assert cap.slots // cap.slots_per_request == got


def test_asked_for_32_got_9() -> None:
    cap = cap_of(published_start("rtx6000ada-qwopus27b-fp8"))
    assert cap is not None
    assert cap.sentence == "32 asked for, 9 run: 47 state slots at 5 a request (47 // 5 = 9)."


def test_every_start_up_that_runs_fewer_than_asked_has_a_limit() -> None:
    for row in published():
        words = row.flags
        got = row.counts.get("max_running_requests")
        if got is None or "--max-running-requests" not in words:
            continue
        asked = int(words[words.index("--max-running-requests") + 1])
        cap = cap_of(row)
        assert cap is not None, row.id
        assert (cap.limit == FLAG) == (got == asked), row.id


def test_a_default_under_speculation_is_shared_among_workers() -> None:
    cap = cap_of(published_start("h100-glm53flash-dp8-nextn"))
    assert cap is not None and cap.limit == FLAG
    assert "48 under speculation" in cap.sentence


def test_kv_cache_of_two_tokens_a_request() -> None:
    row = published_start("rtx6000ada-qwopus27b-fp8")
    tiny = row.model_copy(update={"counts": {"kv_tokens": 19, "max_running_requests": 9}})
    cap = cap_of(tiny)
    assert cap is not None and cap.limit == KV_CACHE


def test_table() -> None:
    table = caps_table()
    assert len(table) == len(caps()) >= 18
    assert set(table["limit"]) <= {STATE_SLOTS, FLAG}
    assert table["why"].str.len().min() > 20
    assert caps_table([]).empty
