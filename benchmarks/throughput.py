"""Launches per second over a grid of 1,000, each isolated, next to a fresh process per launch.

Run: ``.venv/bin/python benchmarks/throughput.py``. Prints both rates and the memory of the child.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil

from casebook import capsule as capsules
from casebook.catalog.gpus import gpu
from casebook.catalog.hub import hub_for_catalog
from casebook.catalog.incident import load_incident
from casebook.launch import Launch
from casebook.resolution.sweep import grid_launches, sweep
from casebook.sandbox import Worker

GRID = {
    "--mem-fraction-static": [round(0.5 + 0.01 * n, 2) for n in range(40)],
    "--max-mamba-cache-size": [None, 64, 128, 256, 512],
    "--mamba-scheduler-strategy": ["extra_buffer", None],
    "--page-size": [None, 16, 64],
}
POINTS = 1000
FRESH = 6
FIELDS = ("page_size", "max_running_requests", "mem_fraction_static", "max_mamba_cache_size")


def main() -> None:
    base = Launch.of(load_incident().command())
    grid = {**GRID, "--mem-fraction-static": GRID["--mem-fraction-static"][: POINTS // 30 + 1]}
    count = len(grid_launches(base, grid))
    sweep(base, {"--page-size": [64]}, fields=FIELDS, progress=False)  # the child starts
    started = time.perf_counter()
    table = sweep(base, grid, fields=FIELDS)
    seconds = time.perf_counter() - started
    print(f"forked: {count} launches in {seconds:.1f} s, {count / seconds:.1f} per second")
    print(table["outcome"].value_counts().to_string())
    for child in psutil.Process().children():
        full = child.memory_full_info()
        print(
            f"child {child.pid}: {full.rss / 2**20:.0f} MiB resident, {full.pss / 2**20:.0f} MiB its share"
        )

    held, device, hub = capsules.ensure("0.5.11"), gpu("B200").as_device(), hub_for_catalog()
    started = time.perf_counter()
    for _, launch in grid_launches(base, grid)[:FRESH]:
        with Worker(held, device, hub) as own:
            own.call("resolve", argv=list(launch.argv), env={}, cwd=str(Path.cwd()))
    seconds = time.perf_counter() - started
    print(
        f"a fresh process each: {FRESH} launches in {seconds:.1f} s, {FRESH / seconds:.2f} per second"
    )
    print(f"load average while this ran: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
