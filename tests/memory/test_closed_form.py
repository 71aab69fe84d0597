"""The closed form equals the release's own code. Here a sample; ``benchmarks/memory_grid.py`` has it all."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from memory_grid import bases, compare

from casebook.catalog.gpus import GIB
from casebook.memory import closed_form
from casebook.memory.dry_run import Sizer

pytestmark = pytest.mark.capsule


# One release of each kind of division, and of each way in which the runner is built.
@pytest.mark.parametrize("release", ["0.5.9", "0.5.11", "0.5.14", "0.5.23"])
def test_equal_on_a_grid(release: str) -> None:
    sizer = Sizer(release)
    compared = [one for base in bases(release) for one in compare(sizer, base, 3, seed=7)]
    differing = [(str(one.point.launch()), one.differences) for one in compared if one.differences]
    assert not differing
    assert len(compared) >= 30
    assert len({one.outcome for one in compared}) >= 2


def test_many_points_in_pieces_are_the_points_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where knobs are plain numbers, and where they span a table of two axes."""
    facts = Sizer("0.5.11").run("--model-path Qwen/Qwen3.6-27B").facts
    knobs = closed_form.Knobs(
        free_before_bytes=178 * GIB,
        free_after_bytes=120 * GIB,
        mem_fraction_static=np.linspace(0.3, 0.98, 17)[:, None],
        max_mamba_cache_size=np.array([closed_form.UNSET, 40, 240])[None, :],
    )
    whole = closed_form.size(facts, knobs)
    monkeypatch.setattr(closed_form, "PIECE", 5)
    pieces = closed_form.size(facts, knobs)
    assert whole.tokens.shape == (17, 3)
    for column in fields(closed_form.Sizes):
        a, b = getattr(whole, column.name), getattr(pieces, column.name)
        assert a.dtype == b.dtype, column.name
        np.testing.assert_array_equal(a, b, column.name)
    assert len(set(whole.outcome.flat)) > 1
