"""Published start-ups against the plan of the same launch (``benchmarks/measured.py`` runs them all)."""

from __future__ import annotations

import pytest

from casebook.catalog.releases import load_releases
from casebook.measure import published, published_start
from casebook.memory.explanations import explanations
from casebook.memory.measured import (
    COLUMNS,
    STATE,
    WITH_LOAD,
    Comparison,
    compare,
    figures,
)
from casebook.memory.measured_pictures import finding, residual_strips
from casebook.memory.retold import Retold, later, retell

# Dense, GDN, Mamba2 with and without speculation; three releases, three devices, TP 1 and 4.
REPRESENTATIVE = (
    "b200-qwen3-8b-tp1-default",
    "h100-qwen38-27b-fp8-f085",
    "gb10x4-nemotron3super-mtp",
    "gb10x4-nemotron3nanoomni-case01",
    "gb10x4-nemotron3nanoomni-colocated",
    "gb10x4-nemotron3nanoomni-case04-bf16",
    "gb10-lightning30b-nvfp4",
)


@pytest.fixture(scope="module")
def found() -> Comparison:
    rows = [published_start(name) for name in REPRESENTATIVE]
    return compare(rows, progress=False)


@pytest.mark.capsule
def test_state_pools_equal_the_logs_own_rounding(found: Comparison) -> None:
    assert found.left_out.empty, found.left_out.to_string()
    assert found.share_within(*STATE) == 1.0
    pools = found.table[found.table["check"] == "pools"]
    assert set(STATE) | {"kv", "draft_kv"} <= set(pools["component"])
    assert pools["row"].nunique() == len(REPRESENTATIVE)


@pytest.mark.capsule
def test_tokens_within_one_per_cent_where_the_log_tells_the_memory(found: Comparison) -> None:
    tokens = found.table[
        (found.table["check"] == "division") & (found.table["component"] == "kv_tokens")
    ]
    loaded = tokens[tokens["tolerance_percent"] == WITH_LOAD].set_index("row")
    assert {"b200-qwen3-8b-tp1-default", "h100-qwen38-27b-fp8-f085"} <= set(loaded.index)
    assert loaded["percent"].abs().max() < 1.0


@pytest.mark.capsule
def test_what_is_beyond_is_explained(found: Comparison) -> None:
    assert found.unexplained.empty, found.unexplained.to_string()
    assert tuple(found.table.columns) == COLUMNS
    assert finding(found.table) in residual_strips(found.table, "component").axes[0].get_title(
        "left"
    )


def test_every_row_is_told_again_or_says_why_not() -> None:
    told = {row.id: retell(row) for row in published()}
    cases = {name: case for name, case in told.items() if isinstance(case, Retold)}
    assert len(cases) >= 55
    for name, case in cases.items():
        assert case.release in load_releases()
        assert case.launch.value_of("--model-path") == case.model, name
        if case.row.release in load_releases():
            assert case.release_from == "stated"
    for sentence in told.values():
        assert isinstance(sentence, Retold) or sentence.endswith(".")


@pytest.mark.parametrize(
    ("row", "release", "origin", "gpu", "stands_in"),
    [
        ("h100-qwen38-27b-fp8-f085", "0.5.18", "stated", "H100", False),
        ("mi355x-qwen38-27b-fp8-tp2", "0.5.17", "near", "MI355X", True),
        ("rtx4090x2-qwen35-9b-tp2", "0.5.10.post1", "by date", "RTX 4090", True),
        ("gb10-qwen38-27b-mmcs32", "0.5.16", "assumed", "GB10", True),
        ("rtxpro6000x4-qwen35-397b-fp4-f080", "0.5.16", "stated", "RTX PRO 6000", False),
    ],
)
def test_what_stands_in_is_said(
    row: str, release: str, origin: str, gpu: str, stands_in: bool
) -> None:
    case = retell(published_start(row))
    assert isinstance(case, Retold)
    assert (case.release, case.release_from, case.gpu.id) == (release, origin, gpu)
    assert case.gpu_stands_in == stands_in


def test_a_build_between_releases_may_ask_a_later_one_and_a_stated_release_not() -> None:
    near = retell(published_start("gb10-qwen35-35b-int4-dflash16"))
    stated = retell(published_start("h100-qwen38-27b-fp8-f085"))
    assert isinstance(near, Retold) and isinstance(stated, Retold)
    assert [case.release for case in later(near)][:2] == ["0.5.11", "0.5.12"]
    assert "later release" in later(near)[0].notes[-1]
    assert later(stated) == []


def test_a_device_that_nothing_stands_for() -> None:
    sentence = retell(published_start("h100-qwen38-27b-fp8-f085").model_copy(
        update={"gpu": None, "stated_gpu": "Ascend NPU"}
    ))  # fmt: skip
    assert sentence == "No profile stands for Ascend NPU."


def test_halves_of_the_kv_cache_are_one_figure() -> None:
    shown = figures(published_start("h100-qwen38-27b-fp8-f085"))
    assert shown["kv"].value == shown["k"].value + shown["v"].value
    assert shown["kv"].step == 2 * shown["k"].step
    only_k = figures(published_start("gb10-qwen38-27b-nvfp4-lazy-nospec"))
    assert only_k["kv"].value == 2 * only_k["k"].value


def test_every_explanation_is_of_a_row_of_the_collection() -> None:
    rows = {row.id for row in published()}
    for (row, check), why in explanations().items():
        assert row in rows and check in ("pools", "division", "weights", "outcome")
        assert all(len(text) > 40 and text.endswith(".") for text in why.values())


def test_nothing_to_compare() -> None:
    empty = compare([], progress=False)
    assert empty.table.empty and empty.left_out.empty
    assert empty.unexplained.empty
