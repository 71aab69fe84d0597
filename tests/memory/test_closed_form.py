"""The closed form equals the release's own code. Here a sample; ``benchmarks/memory_grid.py`` has it all."""

from __future__ import annotations

import pytest
from memory_grid import bases, compare

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
