from __future__ import annotations

import pytest

from casebook import capsule as capsules
from casebook.catalog.gpus import gpu
from casebook.resolution import pool

pytestmark = pytest.mark.capsule


def test_a_child_whose_first_launch_is_refused_is_warm_all_the_same() -> None:
    """Else each later launch imported for itself what its parent had not: a second, not 20 ms."""
    held, device = capsules.ensure("0.5.11"), gpu("B200").as_device(3)  # a child of this test's own
    hybrid = ["--model-path", "Qwen/Qwen3.6-27B"]
    worker = pool.worker(held, device, {}, warm_with=[*hybrid, "--no-such-flag"])
    answer = worker.call("resolve", argv=hybrid, list_imports=True)
    assert answer["outcome"] == {"kind": "resolved"}
    assert [name for name in answer["imported"] if name.startswith("sglang.srt.configs")] == []
