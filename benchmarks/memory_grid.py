"""Closed form against dry run on a grid of every family, release by release.

    python benchmarks/memory_grid.py [--points 520] [--release 0.5.11 ...] [--jobs 2]

Prints per release: points, how many differ, what became of them. Exit status 1 if any differs.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections import Counter
from pathlib import Path

from tqdm.auto import tqdm

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/memory"))

from memory_grid import bases, compare

from casebook.catalog.releases import load_releases
from casebook.errors import MemoryPlanError
from casebook.memory.dry_run import Sizer
from casebook.resolution import pool


def main() -> int:
    """Run the grid."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=520, help="points per release, at least")
    parser.add_argument("--release", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    releases = given.release or [str(r.version) for r in sorted(load_releases().values())]
    failed = False
    for release in releases:
        started = time.monotonic()
        sizer = Sizer(release)
        outcomes: Counter[str] = Counter()
        models: set[str] = set()
        differing = []
        left_out = []
        usable = bases(release)
        each = math.ceil(given.points / (len(usable) - 1))  # some points are refused as arguments
        for base in tqdm(usable, desc=release, leave=False):
            try:
                for one in compare(sizer, base, each, given.seed, given.jobs):
                    outcomes[one.outcome] += 1
                    models.add(base.model)
                    if one.differences:
                        differing.append(one)
            except MemoryPlanError as error:
                left_out.append(f"{base.model} {base.flags}: {error}")
        pool.close_all()
        seconds = time.monotonic() - started
        print(
            f"{release}: {sum(outcomes.values())} points, {len(differing)} differ, "
            f"{len(models)} models, {dict(outcomes)}, {seconds:.0f} s",
            flush=True,
        )
        for text in left_out:
            print(f"  left out: {text}", flush=True)
        for one in differing[:5]:
            print(f"  {one.point.launch()} {one.differences}", flush=True)
        failed = failed or bool(differing)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
