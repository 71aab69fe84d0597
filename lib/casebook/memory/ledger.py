"""The ledger of one rank: what takes how much, in the order in which SGLang spends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from casebook.measure import Calibration
from casebook.memory.dry_run import Device, DryRun


@dataclass(frozen=True)
class Entry:
    """One part of the ledger. ``bytes`` is what it takes; ``left_bytes`` what is free behind it."""

    part: str
    bytes: int
    left_bytes: int
    source: str
    """Where the figure comes from."""
    note: str = ""


def entries_of(
    run: DryRun, device: Device, sources: Mapping[str, str], calibration: Calibration | None
) -> tuple[Entry, ...]:
    """The ledger of a dry run. ``sources``: where ``before`` and ``weights`` come from."""
    made = _Ledger(device.total_bytes)
    made.take("before_load", device.total_bytes - device.free_before_bytes, sources["before"])
    if "after_load_bytes" not in run.raw:
        return tuple(made.entries)
    after = int(run.raw["after_load_bytes"])
    made.take("weights", device.free_before_bytes - after, sources["weights"])
    counted = "after_draft_load_bytes" in run.raw
    if counted:
        taken = after - int(run.raw["after_draft_load_bytes"])
        made.take("draft_weights", taken, sources["weights"], "loaded before the pools are sized")
    if not run.reached_pools:
        return tuple(made.entries)
    target = run.raw["target"]
    _pools(made, run)
    draft = run.raw.get("draft")
    if draft is not None:
        if not counted:
            taken = int(run.raw["draft_weights_bytes"])
            note = "loaded behind the pools: outside mem_fraction_static"
            made.take("draft_weights", taken, sources["weights"], note)
        rows = run.parts("draft")["kv"]
        note = "" if counted else "outside mem_fraction_static"
        made.take("draft_kv", rows, _SGLANG, note)
    last = int((draft or target)["free_bytes"])
    made.take("other_buffers", made.left - last, _SGLANG, "index lists, rounding to 2 MiB")
    if calibration is not None and calibration.slack_bytes:
        made.take("slack", max(calibration.slack_bytes, 0), "calibration")
    if calibration is not None and calibration.graph_bytes:
        made.take("graphs", calibration.graph_bytes, "calibration")
    return tuple(made.entries)


_SGLANG = "SGLang's pools, built"


def _pools(made: _Ledger, run: DryRun) -> None:
    target = run.raw["target"]
    tokens = f"{target['max_total_num_tokens']:,} tokens in {target['kv_cache_dtype']}"
    for name, size in run.parts().items():
        made.take(name, size, _SGLANG, tokens if name == "kv" else "")
    made.take("request_table", run.pool_bytes()["req_to_token_pool.req_to_token"], _SGLANG)


class _Ledger:
    def __init__(self, total_bytes: int) -> None:
        self.left = total_bytes
        self.entries: list[Entry] = []

    def take(self, part: str, size: int, source: str, note: str = "") -> None:
        self.left -= size
        self.entries.append(Entry(part, size, self.left, source, note))
