"""A launch over a grid: the points, their isolation, and limits that end a point and not the sweep."""

from __future__ import annotations

import pytest

from casebook.errors import LaunchError
from casebook.launch import Launch
from casebook.resolution import trace
from casebook.resolution.sweep import grid_launches, sweep
from casebook.sandbox import Limits

BASE = Launch(("--model-path", "Qwen/Qwen3.6-27B", "--page-size", "8", "--tp", "2"))


def test_each_point_sets_takes_away_or_toggles() -> None:
    grid = {"--page-size": [None, 16], "--disable-radix-cache": [True, False]}
    found = grid_launches(BASE, grid)
    assert [launch.argv[2:] for _, launch in found] == [
        ("--tp", "2", "--disable-radix-cache"),
        ("--tp", "2"),
        ("--tp", "2", "--page-size", "16", "--disable-radix-cache"),
        ("--tp", "2", "--page-size", "16"),
    ]
    assert found[0][0] == {"--page-size": None, "--disable-radix-cache": True}


def test_an_option_with_several_values_or_an_equals_sign_is_replaced_whole() -> None:
    base = Launch(("--bs", "1", "2", "3", "--page-size=8", "--tp", "2"))
    (_, launch), *_ = grid_launches(base, {"--bs": ["4"], "--page-size": [1]})
    assert launch.argv == ("--tp", "2", "--bs", "4", "--page-size", "1")


def test_a_key_that_is_no_option_is_refused() -> None:
    with pytest.raises(LaunchError, match="page_size"):
        grid_launches(BASE, {"page_size": [1]})


@pytest.mark.capsule
def test_a_sweep_gives_what_a_trace_gives() -> None:
    grid = {"--page-size": [16, 64], "--speculative-algorithm": [None, "NEXTN"]}
    fields = ["page_size", "max_running_requests"]
    table = sweep(BASE, grid, fields=fields, progress=False)
    assert len(table) == 4
    for (_, launch), (_, row) in zip(grid_launches(BASE, grid), table.iterrows(), strict=True):
        trail = trace(launch)
        assert row["outcome"] == str(trail.outcome.kind)
        for field in fields:
            assert row[field] == trail[field].final or (
                trail[field].final is None and row[field] != row[field]  # a table's empty cell
            )
    assert "is not compatible with radix cache" in table["reason"].iloc[1]


@pytest.mark.capsule
def test_a_point_at_its_limit_is_an_outcome_and_the_next_sweep_works() -> None:
    grid = {"--page-size": [16, 64]}
    stopped = sweep(BASE, grid, limits=Limits(seconds=0.0), progress=False)
    assert set(stopped["outcome"]) == {"timed out"}
    assert set(sweep(BASE, grid, progress=False)["outcome"]) == {"starts"}


@pytest.mark.capsule
@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.5.9", "0.5.15.post1", "0.5.17", "0.5.23"])
def test_the_end_is_the_same_without_the_way_in_each_style(release: str) -> None:
    base = Launch(("--model-path", "Qwen/Qwen3.6-27B", "--page-size", "8"))
    grid = {"--speculative-algorithm": [None, "NEXTN"], "--attention-backend": [None, "triton"]}
    fields = ["page_size", "disable_overlap_schedule", "mamba_radix_cache_strategy", "tp_size"]
    table = sweep(base, grid, fields=fields, release=release, progress=False)
    for (_, launch), (_, row) in zip(grid_launches(base, grid), table.iterrows(), strict=True):
        trail = trace(launch, release=release)
        assert row["outcome"] == str(trail.outcome.kind)
        for field in fields:
            final = trail[field].final if field in trail else None
            empty = row[field] is None or row[field] != row[field]  # a table's empty cell
            assert empty if final is None else row[field] == final
