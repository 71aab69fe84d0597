"""The 32 checks, run over a pipeline (the bench) or over a drafter's files.

Each check says what it looks for, why, and where the failure was seen; ``casebook drafter-check``
prints their findings. That each of them can fail is proven in :mod:`casebook.dflash.faults`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from casebook.dflash import checks_files, checks_form, checks_run  # noqa: F401 - they register
from casebook.dflash.bench import Bench, Given, Pipeline
from casebook.dflash.checks_base import REGISTRY, Check, Finding, State, failed, skipped
from casebook.errors import CapsuleError, WorkerError

CHECKS: tuple[Check, ...] = tuple(REGISTRY[n] for n in sorted(REGISTRY))


def run_on_bench(check: Check, bench: Bench) -> Finding:
    """One check of a pipeline. A step that raises is a failure of the pipeline, with its message."""
    with bench.pipeline.patch():
        try:
            if check.bench is not None:
                return check.bench(bench)
            assert check.files is not None
            return check.files(bench.given)
        except (CapsuleError, WorkerError):
            raise  # the surroundings are broken, not the pipeline
        except Exception as error:
            return failed(f"{type(error).__name__}: {error}")


def run_on_files(check: Check, given: Given) -> Finding:
    """One check of a drafter on disk; not applicable where it needs the training code."""
    if check.files is None:
        return skipped("needs the training code; see notebook 07")
    return check.files(given)


def bench_table(
    pipeline: Pipeline,
    scratch: Path,
    shared: dict[Any, Any] | None = None,
    only: Iterable[int] = (),
) -> pd.DataFrame:
    """All checks over one pipeline: number, check, finding, detail."""
    bench, wanted = Bench(pipeline, scratch, shared), set(only)
    chosen = [c for c in CHECKS if not wanted or c.number in wanted]
    return _table([(c, run_on_bench(c, bench)) for c in chosen])


def files_table(given: Given) -> pd.DataFrame:
    """All checks over a drafter's files: number, check, finding, detail."""
    return _table([(c, run_on_files(c, given)) for c in CHECKS])


def _table(found: list[tuple[Check, Finding]]) -> pd.DataFrame:
    rows = [(c.number, c.name, str(f.state), f.detail, c.source) for c, f in found]
    return pd.DataFrame(rows, columns=["check", "name", "finding", "detail", "source"]).set_index(
        "check"
    )


__all__ = ["CHECKS", "State", "bench_table", "files_table", "run_on_bench", "run_on_files"]
