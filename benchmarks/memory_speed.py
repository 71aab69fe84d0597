"""How fast memory is asked: points a second of the closed form, seconds a point of the dry run.

python benchmarks/memory_speed.py
"""

from __future__ import annotations

import os
import statistics
import time

import numpy as np

from casebook.catalog.gpus import GIB
from casebook.memory.closed_form import Knobs, size
from casebook.memory.dry_run import Device, Sizer

POINTS = 1_000_000
LAUNCH = (
    "python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B --speculative-algorithm NEXTN "
    "--mamba-scheduler-strategy extra_buffer --max-running-requests {}"
)


def main() -> None:
    """Measure both."""
    sizer = Sizer("0.5.11")
    device = Device(round(178.36 * GIB), round(177.57 * GIB), round(51.2 * GIB), round(0.8 * GIB))
    facts = sizer.run(LAUNCH.format(48)).facts
    seconds = []
    for number in range(20):  # each another launch, so that none is remembered
        started = time.perf_counter()
        run = sizer.run(LAUNCH.format(20 + number), device)
        seconds.append(time.perf_counter() - started)
        assert run.outcome == "resolved"
    print(
        f"dry run on a warm child: median {statistics.median(seconds):.3f} s a point, "
        f"best {min(seconds):.3f}, worst {max(seconds):.3f}"
    )
    rng = np.random.default_rng(0)
    knobs = Knobs(
        free_before_bytes=np.full(POINTS, device.free_before_bytes),
        free_after_bytes=device.free_before_bytes - rng.integers(40, 60, POINTS) * GIB,
        mem_fraction_static=rng.uniform(0.5, 0.95, POINTS),
        max_mamba_cache_size=rng.integers(1, 600, POINTS),
        max_running_requests=rng.integers(1, 256, POINTS),
    )
    before = time.process_time()
    size(facts, knobs)
    cpu = time.process_time() - before
    print(f"closed form: {POINTS / cpu:,.0f} points a second of CPU time, one thread")
    print(f"load average: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
