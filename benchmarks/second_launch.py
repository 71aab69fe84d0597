"""How long a trail takes on a warm child: the second launch, and those after it.

Run: ``.venv/bin/python benchmarks/second_launch.py``. Prints the median, best and worst of 40 launches.
"""

from __future__ import annotations

import statistics
import time

from casebook.catalog.incident import load_incident
from casebook.resolution import trace

LAUNCHES = 40


def main() -> None:
    command = load_incident().command()
    started = time.perf_counter()
    trace(command)
    print(f"first launch (child starts, SGLang is imported): {time.perf_counter() - started:.2f} s")
    seconds = []
    for _ in range(LAUNCHES):
        started = time.perf_counter()
        trace(command)
        seconds.append(time.perf_counter() - started)
    print(
        f"each of {LAUNCHES} more: median {1000 * statistics.median(seconds):.1f} ms, "
        f"best {1000 * min(seconds):.1f} ms, worst {1000 * max(seconds):.1f} ms; "
        f"the second launch took {1000 * seconds[0]:.1f} ms"
    )


if __name__ == "__main__":
    main()
