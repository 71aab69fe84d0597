"""State slots that one running request occupies, under each strategy: asked of the release itself."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pandas as pd

from casebook.catalog.gpus import MIB, GpuProfile
from casebook.catalog.models import ModelFacts
from casebook.launch import Launch
from casebook.memory.dry_run import Device, DryRun, Sizer
from casebook.memory.sweep import flag_name
from casebook.resolution.sweep import grid_launches

STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy")


def strategies(
    base: Launch | str,
    *,
    release: str = "0.5.11",
    gpu: str | GpuProfile = "B200",
    model: str | Path | ModelFacts | None = None,
) -> pd.DataFrame:
    """A row per strategy, with and without the overlap scheduler and the radix cache.

    Columns: ``strategy``, ``overlap``, ``radix_cache``, ``slots_per_request`` (missing where SGLang
    refuses), ``state_MiB`` of one running request (slots, and a state per draft token where ``base``
    speculates), ``refusal``.
    """
    sizer = Sizer(release, gpu)
    flag = flag_name("strategy", release)
    rows = []
    for name, overlap, radix in itertools.product(STRATEGIES, (True, False), (True, False)):
        if not radix and name != "no_buffer":
            continue  # without a radix cache there is nothing to buffer for
        switches: dict[str, list[Any]] = {
            flag: [name if radix else None],
            "--disable-overlap-schedule": [not overlap],
            "--disable-radix-cache": [not radix],
        }
        ((_, launch),) = grid_launches(base, switches)
        run = sizer.run(launch, Device.endless(), model=model)
        row = {
            "strategy": name if radix else "(no cache)",
            "overlap": overlap,
            "radix_cache": radix,
        }
        if run.reached_pools and run.facts.state is not None:
            row |= {
                "slots_per_request": run.facts.slots_per_request,
                "state_MiB": round(run.facts.request_bytes / MIB, 1),
                "refusal": "",
            }
        else:
            told = _refusal(run)
            row |= {"slots_per_request": None, "state_MiB": None, "refusal": told}
        rows.append(row)
    return pd.DataFrame(rows).astype({"slots_per_request": "Int64"})


def _refusal(run: DryRun) -> str:
    if run.outcome == "exit":
        return f"SGLang {run.release} has no such choice"
    return run.message.strip().partition("\n")[0] or "the model has no state"
