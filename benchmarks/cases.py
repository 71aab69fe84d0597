"""All cases on five releases or more, from a process that has started nothing: seconds, and the slowest.

Run: ``.venv/bin/python benchmarks/cases.py [RELEASE,...] [GPU]``. The capsules must have been built, and a first
run brings their files into memory; the second is the one to read.
"""

from __future__ import annotations

import os
import sys
import time

from casebook import capsule as capsules
from casebook.cases import CellState, named, run_cases

RELEASES = "0.5.9,0.5.11,0.5.13.post1,0.5.15.post1,0.5.23"
JOBS = 2


def main() -> None:
    releases = (sys.argv[1] if len(sys.argv) > 1 else RELEASES).split(",")
    for release in releases:
        capsules.ensure(release)
    gpu = sys.argv[2] if len(sys.argv) > 2 else ""
    cases = [case for case in named([]) if gpu in ("", case.gpu)]
    before = os.getloadavg()[0]
    started = time.perf_counter()
    cells = run_cases(cases, releases, jobs=JOBS)
    seconds = time.perf_counter() - started
    started = time.perf_counter()
    run_cases(cases, releases, jobs=JOBS)
    again = time.perf_counter() - started
    children = len({(cell.release, cell.case.gpu) for cell in cells})
    print(
        f"{len(cases)} cases on {len(releases)} releases, {len(cells)} cells, in {seconds:.1f} s with "
        f"{JOBS} jobs ({children} pairs of release and GPU); load average before: {before:.1f}"
    )
    print(f"  again, on the children that are warm then: {again:.1f} s")
    for state in CellState:
        print(f"  {state}: {sum(cell.state is state for cell in cells)}")
    otherwise = [cell for cell in cells if not cell.as_stated]
    print(f"  not as its file says: {len(otherwise)}")
    sys.exit(bool(otherwise))


if __name__ == "__main__":
    main()
