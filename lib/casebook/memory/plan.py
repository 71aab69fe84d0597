"""``plan(...)``: the ledger of one rank, in bytes, in the order in which SGLang spends them.

The figures of the pools are the release's own, from a dry run; the closed form names the limit that
sets the requests and the pool that does not fit, and must agree. What no code can tell before a server
has run (what lies on the device before the weights, what graphs keep) comes from the GPU's profile or a
calibration, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from casebook.catalog.gpus import GIB, GpuProfile, load_gpus
from casebook.catalog.models import ModelFacts, load_models
from casebook.errors import MemoryPlanError
from casebook.launch import Launch
from casebook.measure import Calibration
from casebook.memory import closed_form
from casebook.memory.dry_run import Device, DryRun, Sizer
from casebook.memory.facts import RankFacts
from casebook.memory.ledger import Entry, entries_of
from casebook.memory.weights import estimate_bytes
from casebook.resolution.trace import model_facts
from casebook.resolution.trail import Trail

HEADROOM_BYTES = 4 * GIB
"""Free memory behind the pools below which a start is called tight: graphs took 0.03 to 7 GiB in the
published start-ups (data/measurements), prefill graphs 2.3 to 3.9."""

Verdict = Literal["starts", "tight", "refused", "not enough memory", "out of memory"]

SIZING_ERRORS = {
    "Not enough GPU memory for hybrid": "no state slot fits",
    "Loaded weights leave no GPU memory": "weights leave nothing",
    "Not enough memory": "not enough memory",
    "too small to serve": "no request fits",
}
"""Words of SGLang's errors while it sizes -> the outcome's name in ``closed_form.OUTCOMES``."""


def verdict_of(outcome: str) -> Verdict:
    """The verdict on an outcome of ``closed_form.OUTCOMES``."""
    if outcome == "starts":
        return "starts"
    return "out of memory" if outcome.startswith("out of memory") else "not enough memory"


@dataclass(frozen=True)
class MemoryPlan:
    """What a launch makes of one rank's memory."""

    launch: Launch
    release: str
    gpu: str
    model: str
    verdict: Verdict
    reason: str
    """One sentence: which limit, which pool, what SGLang says."""
    entries: tuple[Entry, ...]
    tokens: int | None
    """``max_total_num_tokens``; None where it does not get that far."""
    slots: int | None
    """``max_mamba_cache_size``; None for a model without state, too."""
    slots_per_request: int | None
    requests: int | None
    """Effective ``max_running_requests``."""
    requested: int | None
    """``max_running_requests`` as resolved, before memory bounds it."""
    limit: str | None
    """What bounds the requests: a name of ``closed_form.LIMITS``."""
    context_tokens: int | None
    mem_fraction_static: float | None
    left_bytes: int | None
    """Free behind all pools."""
    device: Device
    run: DryRun = field(repr=False)
    facts: RankFacts | None = field(repr=False, default=None)
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the server comes up (tight or not)."""
        return self.verdict in ("starts", "tight")

    def concurrency(self, context_tokens: int) -> int:
        """Requests of that many tokens that run at the same time."""
        if not self.requests or not self.tokens:
            return 0
        return min(self.requests, self.tokens // max(context_tokens, 1))

    def table(self) -> pd.DataFrame:
        """The ledger: a row per part, in the order in which SGLang spends the memory."""
        total = self.device.total_bytes
        return pd.DataFrame(
            {
                "part": [e.part for e in self.entries],
                "bytes": [e.bytes for e in self.entries],
                "GiB": [round(e.bytes / GIB, 2) for e in self.entries],
                "share_percent": [round(100 * e.bytes / total, 1) for e in self.entries],
                "left_GiB": [round(e.left_bytes / GIB, 2) for e in self.entries],
                "source": [e.source for e in self.entries],
                "note": [e.note for e in self.entries],
            }
        )

    def of(self, part: str) -> int:
        """Bytes of one part; 0 where the plan has none."""
        return sum(e.bytes for e in self.entries if e.part == part)

    def predicted(self) -> dict[str, int]:
        """The ledger by the names that measurements use (``casebook.measure``)."""
        return _predicted(self)


def plan(
    trail: Trail | Launch | str,
    model: str | Path | ModelFacts | None = None,
    gpu: str | GpuProfile | None = None,
    calibration: Calibration | None = None,
    *,
    release: str | None = None,
    gpus: int | None = None,
    weights_bytes: int | None = None,
    free_before_bytes: int | None = None,
    headroom_bytes: int = HEADROOM_BYTES,
    pp_rank: int = 0,
) -> MemoryPlan:
    """The ledger of one rank of a launch.

    ``trail`` is a trail, whose release, GPU and model are taken where none is given, or a launch
    (0.5.11 on a B200 where nothing else is said). ``calibration`` (of a log, see
    ``casebook.measure``) replaces what is assumed; ``weights_bytes`` and ``free_before_bytes`` do so
    one by one. Raises MemoryPlanError where a figure is missing that nothing can tell, and what
    ``dry_run`` raises.
    """
    launch = trail.launch if isinstance(trail, Trail) else Launch.of(trail)
    if isinstance(trail, Trail):
        release = release or trail.release
        gpu = gpu or _gpu_of(trail)
        model = model or (trail.model if trail.model in load_models() else None)
    sizer = Sizer(release or "0.5.11", gpu or "B200", gpus)
    device, sources = _device(sizer, calibration, weights_bytes, free_before_bytes)
    run = sizer.run(launch, device, model=model, pp_rank=pp_rank)
    if device.weights_bytes is None and _not_constructed(run) == "the target":
        facts = model_facts(launch.value_of("--model-path", "--model") or "", model)
        told = run.message.partition("\n")[0][:120]
        device = replace(device, weights_bytes=_estimated(facts, run))
        sources["weights"] = "estimate: checkpoint divided among ranks"
        sources["note"] = f"Weights are an estimate: the model class could not be made ({told})."
        run = sizer.run(launch, device, model=model, pp_rank=pp_rank)
    if device.draft_weights_bytes is None and _not_constructed(run) == "the draft":
        device = replace(device, draft_weights_bytes=0)
        told = run.message.partition("\n")[0][:120]
        note = f"The draft's weights are not counted: its class could not be made ({told})."
        sources["note"] = f"{sources['note']} {note}" if "note" in sources else note
        run = sizer.run(launch, device, model=model, pp_rank=pp_rank)
    return _plan(run, sizer, device, sources, calibration, headroom_bytes)


def _not_constructed(run: DryRun) -> str | None:
    """Whose class failed to be made for another reason than memory or a model that cannot be divided."""
    if run.raw.get("refused") or _indivisible(run):
        return None
    return run.raw.get("loading")


def _gpu_of(trail: Trail) -> str | None:
    """The profile that a trail was resolved on; None for an installation's own GPUs."""
    name = trail.gpu.partition(" \N{MULTIPLICATION SIGN} ")[0]
    return next((p.id for p in load_gpus().values() if p.device_name == name), None)


def _indivisible(run: DryRun) -> bool:
    """Whether the model itself cannot be divided so: the real loader would say the same."""
    frames = run.raw["outcome"].get("frames") or [["", 0, ""]]
    return frames[-1][2] in ("divide", "ensure_divisibility")


def _device(
    sizer: Sizer,
    calibration: Calibration | None,
    weights_bytes: int | None,
    free_before_bytes: int | None,
) -> tuple[Device, dict[str, str]]:
    total = sizer.total_bytes
    profile = sizer.profile
    sources = {"weights": "SGLang's model class, constructed and counted"}
    draft = None
    if free_before_bytes is not None:
        sources["before"] = "given"
    elif calibration is not None and calibration.before_load_bytes is not None:
        free_before_bytes = total - calibration.before_load_bytes
        sources["before"] = "calibration"
    elif profile.free_at_start_bytes is not None:
        free_before_bytes = profile.free_at_start_bytes
        sources["before"] = f"profile of {profile.id}"
    else:
        free_before_bytes = total - GIB
        sources["before"] = "assumed: 1 GiB"
    if weights_bytes is not None:
        sources["weights"] = "given"
    elif calibration is not None and calibration.weights_bytes is not None:
        weights_bytes = calibration.weights_bytes
        draft = calibration.draft_weights_bytes
        sources["weights"] = "calibration"
    if not 0 < free_before_bytes <= total:
        raise MemoryPlanError(
            f"{free_before_bytes / GIB:.2f} GiB cannot be free on a {profile.id} of "
            f"{total / GIB:.2f} GiB; give the free memory before the weights are loaded."
        )
    return Device(total, free_before_bytes, weights_bytes, draft), sources


def _estimated(facts: ModelFacts, run: DryRun) -> int:
    limits = run.raw["limits"]
    return estimate_bytes(facts, int(limits["tp_size"]), int(limits["pp_size"]))


def _plan(
    run: DryRun,
    sizer: Sizer,
    device: Device,
    sources: Mapping[str, str],
    calibration: Calibration | None,
    headroom_bytes: int,
) -> MemoryPlan:
    limits = run.raw.get("limits", {})
    entries = entries_of(run, device, sources, calibration)
    facts, point, notes = _cross_check(run, sizer)
    left = entries[-1].left_bytes if entries else None
    verdict, reason = _verdict(run, point, left, headroom_bytes)
    target = run.raw.get("target", {})
    if sources.get("note"):
        notes = (*notes, sources["note"])
    return MemoryPlan(
        launch=run.launch,
        release=run.release,
        gpu=sizer.profile.id,
        model=run.launch.value_of("--model-path", "--model") or "?",
        verdict=verdict,
        reason=reason,
        entries=entries,
        tokens=target.get("max_total_num_tokens"),
        slots=target.get("max_mamba_cache_size") if run.raw.get("facts", {}).get("state") else None,
        slots_per_request=run.raw.get("facts", {}).get("slots_per_request"),
        requests=target.get("max_running_requests"),
        requested=limits.get("max_running_requests"),
        limit=point["limit"] if point else None,
        context_tokens=target.get("context_len"),
        mem_fraction_static=limits.get("mem_fraction_static"),
        left_bytes=left,
        device=device,
        run=run,
        facts=facts,
        notes=notes,
    )


def knobs_of(run: DryRun) -> closed_form.Knobs:
    """The point of the closed form that a dry run stands for."""
    limits, device = run.raw["limits"], run.device
    unset = closed_form.UNSET
    return closed_form.Knobs(
        free_before_bytes=device.free_before_bytes,
        free_after_bytes=int(run.raw["at_sizing_bytes"]),
        mem_fraction_static=limits["mem_fraction_static"],
        mamba_full_memory_ratio=limits["mamba_full_memory_ratio"],
        max_mamba_cache_size=_or(limits["max_mamba_cache_size"], unset),
        max_running_requests=_or(limits["max_running_requests"], unset),
        max_total_tokens=_or(limits["max_total_tokens"], unset),
        draft_weights_bytes=int(run.raw.get("draft_weights_bytes") or 0),
    )


def _or(value: int | None, fallback: int) -> int:
    return fallback if value is None else int(value)


def _cross_check(
    run: DryRun, sizer: Sizer
) -> tuple[RankFacts | None, dict[str, Any] | None, tuple[str, ...]]:
    """The facts, the closed form's own result at this point, and what to say where there is none."""
    if run.raw["stage"] != "pools" or "at_sizing_bytes" not in run.raw:
        return None, None, ()
    try:
        ended = run.outcome == "resolved"
        facts = (run if ended else sizer.run(run.launch, Device.endless())).facts
        point = closed_form.size(facts, knobs_of(run)).at(0)
    except MemoryPlanError as error:
        return None, None, (str(error),)
    if run.reached_pools and point["tokens"] != run.figure("max_total_num_tokens"):
        note = (
            f"The closed form gives {point['tokens']:,} tokens and SGLang's own code "
            f"{run.figure('max_total_num_tokens'):,}; trust the latter and report this."
        )
        return facts, point, (note,)
    return facts, point, ()


def _verdict(
    run: DryRun, point: Mapping[str, Any] | None, left: int | None, headroom: int
) -> tuple[Verdict, str]:
    if run.raw["stage"] != "pools" or _indivisible(run):
        return "refused", run.message or "SGLang ends while it reads the arguments."
    if run.outcome == "resolved":
        if run.figure("max_running_requests") <= 0:
            return "not enough memory", "The slots serve no request (max_running_requests is zero)."
        if left is not None and left < headroom:
            return "tight", (
                f"The pools leave {left / GIB:.2f} GiB for graphs and activations, "
                f"less than the {headroom / GIB:.0f} GiB that are prudent."
            )
        return "starts", f"The pools leave {(left or 0) / GIB:.2f} GiB for graphs and activations."
    if run.raw.get("refused"):
        what = point["outcome"].partition(": ")[2] if point else ""
        if loading := run.raw.get("loading"):
            return "out of memory", f"The weights of {loading} do not fit: {_short(run)}."
        return (
            "out of memory",
            f"{'The ' + what if what else 'A pool'} does not fit: {_short(run)}.",
        )
    told = run.message.partition("\n")[0]
    for words, outcome in SIZING_ERRORS.items():
        if words in run.message:
            return verdict_of(outcome), told
    return "refused", told


def _short(run: DryRun) -> str:
    refused = run.raw["refused"]
    return (
        f"a tensor of {int(refused['bytes']) / GIB:.2f} GiB is asked for and "
        f"{max(int(refused['free_bytes']), 0) / GIB:.2f} GiB are free"
    )


def _predicted(made: MemoryPlan) -> dict[str, int]:
    run = made.run.raw
    found = {
        "total": made.device.total_bytes,
        "free_before_load": made.device.free_before_bytes,
        "weights": made.of("weights"),
        "free_after_load": run.get("after_load_bytes"),
        "state_slots": made.slots,
        "kv_tokens": made.tokens,
        "max_total_num_tokens": made.tokens,
        "max_running_requests": made.requests,
        "free_after_pools": run.get("target", {}).get("free_bytes"),
        "draft_kv_tokens": run.get("draft", {}).get("max_total_num_tokens"),
        "draft_free_after_pools": run.get("draft", {}).get("free_bytes"),
    }
    parts = (
        *("draft_weights", "conv_state", "ssm_state", "intermediate_ssm", "intermediate_conv"),
        *("kv", "draft_kv", "graphs"),
    )
    for part in parts:
        if any(e.part == part for e in made.entries):
            found[part] = made.of(part)
    return {name: int(value) for name, value in found.items() if value is not None}
