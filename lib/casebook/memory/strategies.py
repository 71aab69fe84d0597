"""State slots that one running request occupies, under each strategy: asked of the release itself."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pandas as pd
from packaging.version import Version

from casebook.catalog.gpus import GpuProfile
from casebook.catalog.models import ModelFacts
from casebook.launch import Launch
from casebook.memory.dry_run import Device, Sizer
from casebook.memory.sweep import flag_name
from casebook.resolution.sweep import grid_launches


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
    names = ["no_buffer", "extra_buffer"]
    if Version(release) >= Version("0.5.13"):
        names.append("extra_buffer_lazy")
    flag = flag_name("strategy", release)
    rows = []
    for name, overlap, radix in itertools.product(names, (True, False), (True, False)):
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
            facts, state = run.facts, run.facts.state
            held = facts.slots_per_request * (state.conv_bytes + state.ssm_bytes)
            drafted = state.intermediate_ssm_bytes(facts.draft_tokens)
            drafted += (
                state.intermediate_conv_bytes(facts.draft_tokens) if facts.draft_tokens else 0
            )
            row |= {
                "slots_per_request": facts.slots_per_request,
                "state_MiB": round((held + drafted) / 2**20, 1),
                "refusal": "",
            }
        else:
            told = run.message.strip().partition("\n")[0] or "the model has no state"
            row |= {"slots_per_request": None, "state_MiB": None, "refusal": told}
        rows.append(row)
    return pd.DataFrame(rows).astype({"slots_per_request": "Int64"})
