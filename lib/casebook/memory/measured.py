"""Every published start-up against the plan of the same launch: what each part was off by, and why.

Four questions are kept apart, because a log answers them apart:

``pools``      the bytes of each pool at the slots, tokens and requests that the log prints: does SGLang's
               allocation, built in the dry run, weigh what the log says, to the print's own rounding?
``division``   the slots, tokens and requests themselves, from the memory that the log gives before and
               after loading (or, where it gives none, from the GPU's profile and the counted weights)
``weights``    what loading takes, counted from the release's model class
``outcome``    whether the sizing ends at all, where weights and fraction are told and sizes are not
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd
from tqdm.auto import tqdm

from casebook.errors import CasebookError, DataError
from casebook.launch import Launch
from casebook.measure import Calibration, Published, published
from casebook.measure.fit import whole_kv
from casebook.measure.model import Reading
from casebook.memory.dry_run import Device, DryRun, Sizer
from casebook.memory.explanations import explanations
from casebook.memory.plan import MemoryPlan, plan
from casebook.memory.retold import Retold, later, retell

Check = Literal["pools", "division", "weights", "outcome"]
POOLS = ("conv_state", "ssm_state", "intermediate_ssm", "intermediate_conv", "kv", "draft_kv")
STATE = POOLS[:4]
DIVISION = ("state_slots", "kv_tokens", "max_running_requests")
AT_SIZING = ("not enough memory", "weights leave no room", "hybrid state does not fit")
"""Failures that the sizing itself finds."""
COUNTS = {"state_slots": "--max-mamba-cache-size", "kv_tokens": "--max-total-tokens"}
WITH_LOAD, WITHOUT_LOAD = 1.0, 4.0
"""Per cent that slots, tokens and requests may be off: where the log gives the memory behind the
weights, and where it does not."""

COLUMNS = (
    "row", "check", "component", "unit", "predicted", "measured", "difference", "percent",
    "tolerance_percent", "within", "release", "release_from", "gpu", "gpu_stands_in", "model",
    "confidence", "explanation",
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """All comparisons, tidy, and what could not be compared."""

    table: pd.DataFrame
    left_out: pd.DataFrame
    """Rows without enough facts, and why."""

    def share_within(self, *components: str, check: Check = "pools") -> float:
        """Of the rows that show any of these components, the share where all of them are within."""
        part = self.table[self.table["component"].isin(components) & (self.table["check"] == check)]
        return float(part.groupby("row")["within"].all().mean()) if len(part) else float("nan")

    @property
    def unexplained(self) -> pd.DataFrame:
        """What is beyond its tolerance without a word of why."""
        return self.table[~self.table["within"].astype(bool) & (self.table["explanation"] == "")]


def compare(
    rows: Iterable[Published] | None = None,
    *,
    progress: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> Comparison:
    """Plan every row and hold the plan against what was measured."""
    chosen = published() if rows is None else tuple(rows)
    told = [(row, retell(row)) for row in chosen]
    ready = [case for _, case in told if isinstance(case, Retold)]
    left = [(row.id, case) for row, case in told if isinstance(case, str)]
    ready.sort(key=lambda case: (case.release, case.gpu.id))
    records: list[dict[str, Any]] = []
    for case in tqdm(ready, desc="start-ups", disable=not progress, leave=False):
        try:
            found = list(_compare(case))
        except CasebookError as error:
            left.append((case.row.id, str(error).partition("\n")[0]))
            continue
        if not found:
            left.append((case.row.id, "It shows no size, count or weight to compare."))
        report(f"{case.row.id}: {len(found)} figures on {case.release}, {case.gpu.id}")
        records += found
    table = pd.DataFrame(records, columns=list(COLUMNS))
    return Comparison(table, pd.DataFrame(left, columns=["row", "why"]))


def figures(row: Published) -> dict[str, Reading]:
    """A row's figures by the names of :data:`casebook.measure.fit.COMPONENTS`, halves added up.

    Where K alone is printed, V is taken to be as large.
    """
    own = whole_kv(row.figures, alike=True)
    if "kv_tokens" not in own and "max_total_num_tokens" in own:
        own["kv_tokens"] = own["max_total_num_tokens"]
    return own


def _compare(case: Retold) -> Iterator[dict[str, Any]]:
    shown = figures(case.row)
    tried = [case, *later(case)]
    for number, one in enumerate(tried, start=1):
        try:
            yield from list(_all_checks(one, shown))
        except _NotTakenError:
            if number == len(tried):
                raise
        else:
            return


class _NotTakenError(CasebookError):
    """A release that ends while it reads the arguments."""


def _all_checks(case: Retold, shown: Mapping[str, Reading]) -> Iterator[dict[str, Any]]:
    if any(name in shown for name in (*POOLS, "max_running_requests")):
        yield from _pools(case, shown)
    if not case.row.launch_contradicts_log and any(name in shown for name in COUNTS):
        yield from _division(case, shown)
    elif case.row.failure in (None, *AT_SIZING) and "weights" in shown:
        yield from _outcome(case, shown)
    if case.row.model is not None and "weights" in shown:
        yield from _weights(case, shown)


# --- pools --------------------------------------------------------------------------------------


def _pools(case: Retold, shown: Mapping[str, Reading]) -> Iterator[dict[str, Any]]:
    if "state_slots" not in shown and not {"ssm_state", "kv", "draft_kv"} & shown.keys():
        return
    sizer = Sizer(case.release, case.gpu, _gpus(case))
    counts = {name: shown[name].value for name in COUNTS if name in shown}
    told = dict(shown)
    pinned = _pinned(case.launch, counts)
    if _derived(shown):
        run = sizer.run(_pinned(case.launch, {"state_slots": 100}), Device.endless())
        sizes = _sizes(run)
        if "state_slots" not in counts:
            counts["state_slots"] = (
                round(told.pop("ssm_state").value * 101 / sizes["ssm_state"]) - 1
            )
        if "intermediate_ssm" in told and not _requests_told(case.row, told):
            each = sizes["intermediate_ssm"] / (sizes["max_running_requests"] + 1)
            requests = round(told.pop("intermediate_ssm").value / each) - 1
            pinned = _with_requests(case.launch, counts, requests, run)
        else:
            pinned = _pinned(case.launch, counts)
    predicted = _sizes(sizer.run(pinned, Device.endless()))
    if "conv_state" in told and "conv_state" not in predicted:
        raise _NotTakenError(f"SGLang {case.release} keeps no state for {case.model}.")
    for name in (*POOLS, "max_running_requests"):
        if name in told and name in predicted:
            if name == "max_running_requests" and "state_slots" not in counts:
                continue
            yield _record(case, "pools", name, predicted[name], told[name], None)


def _derived(shown: Mapping[str, Reading]) -> bool:
    """Whether a count that the pools need has to be taken from the size of one of them."""
    slots = "ssm_state" in shown and "state_slots" not in shown
    return slots or ("intermediate_ssm" in shown and "max_running_requests" not in shown)


def _requests_told(row: Published, shown: Mapping[str, Reading]) -> bool:
    return "max_running_requests" in shown or "--max-running-requests" in row.flags


def _with_requests(launch: Launch, counts: Mapping[str, int], requests: int, run: DryRun) -> Launch:
    """With requests that a size stands for; where the slots would not serve them, the radix cache is off."""
    each = int(run.raw["facts"]["slots_per_request"] or 1)
    words = [*_pinned(launch, counts).argv, "--max-running-requests", str(requests)]
    if counts["state_slots"] // each < requests:
        words.append("--disable-radix-cache")
    return replace(launch, argv=tuple(words))


def _pinned(launch: Launch, counts: Mapping[str, int]) -> Launch:
    """The launch with the pools' sizes given; the last of a flag counts."""
    words = list(launch.argv)
    for name, flag in COUNTS.items():
        if name in counts:
            words += [flag, str(counts[name])]
    return replace(launch, argv=tuple(words))


def _sizes(run: DryRun) -> dict[str, int]:
    if not run.reached_pools or run.outcome != "resolved":
        early = run.raw.get("stage") != "pools"
        kind = _NotTakenError if early else DataError
        raise kind(f"SGLang {run.release} does not size this launch: {run.told()}")
    found = run.parts()
    if "draft" in run.raw:
        found["draft_kv"] = run.parts("draft")["kv"]
    found["max_running_requests"] = run.figure("max_running_requests")
    return found


# --- division -----------------------------------------------------------------------------------


def _division(case: Retold, shown: Mapping[str, Reading]) -> Iterator[dict[str, Any]]:
    """Not by a default fraction where the device's own total is not known, nor by nothing at all."""
    memory = _memory(case, shown)
    fraction = "--mem-fraction-static" in case.row.flags
    if memory is None or (case.gpu_stands_in and not fraction):
        return
    if not case.row.flags and "free_after_load" not in shown:
        return
    tolerance, before, given = memory
    yield from _held(case, _planned(case, before, given), shown, tolerance)


def _outcome(case: Retold, shown: Mapping[str, Reading]) -> Iterator[dict[str, Any]]:
    memory = _memory(case, shown)
    if memory is None or "--mem-fraction-static" not in case.row.flags:
        return
    _, before, given = memory
    made = _planned(case, before, given)
    measured = Reading(int(case.row.outcome == "started"), 0)
    yield _record(case, "outcome", "starts", int(made.fits), measured, None)


def _planned(case: Retold, before: int | None, given: Calibration | None) -> MemoryPlan:
    return plan(
        case.launch,
        gpu=case.gpu,
        release=case.release,
        gpus=_gpus(case),
        calibration=given,
        free_before_bytes=before,
    )


def _memory(
    case: Retold, shown: Mapping[str, Reading]
) -> tuple[float, int | None, Calibration | None] | None:
    """Tolerance, memory before loading, and weights; None where nothing tells them."""
    after, before = shown.get("free_after_load"), shown.get("free_before_load")
    usage, draft = shown.get("weights"), shown.get("draft_weights")
    if after is not None and (before or usage) is not None:
        start = before.value if before else after.value + usage.value  # type: ignore[union-attr]
        drafted = draft.value if draft else None
        return WITH_LOAD, start, Calibration(None, start - after.value, drafted)
    if case.gpu_stands_in and before is None:
        return None
    if usage is not None:
        given = Calibration(None, usage.value, draft.value if draft else None)
        return WITHOUT_LOAD, before.value if before else None, given
    exact = case.row.model is not None
    if not exact and case.row.quantization not in ("", "bf16"):
        return None
    return WITHOUT_LOAD, before.value if before else None, None


def _held(
    case: Retold, made: MemoryPlan, shown: Mapping[str, Reading], tolerance: float
) -> Iterator[dict[str, Any]]:
    predicted = made.predicted()
    if made.tokens is None:
        kind = DataError if made.run.raw.get("stage") == "pools" else _NotTakenError
        raise kind(f"SGLang {made.release} ends before it sizes the pools: {made.reason}")
    for name in DIVISION:
        if name in shown and name in predicted and COUNTS.get(name) not in case.row.flags:
            yield _record(case, "division", name, predicted[name], shown[name], tolerance)


def _weights(case: Retold, shown: Mapping[str, Reading]) -> Iterator[dict[str, Any]]:
    total = Device.endless()
    run = Sizer(case.release, case.gpu, _gpus(case)).run(
        case.launch, replace(total, weights_bytes=None, draft_weights_bytes=None)
    )
    loaded = run.raw.get("after_load_bytes")
    if loaded is not None:
        taken = total.free_before_bytes - int(loaded)
        yield _record(case, "weights", "weights", taken, shown["weights"], WITH_LOAD)
    if "draft_weights" in shown and run.raw.get("draft_weights_bytes"):
        taken = int(run.raw["draft_weights_bytes"])
        yield _record(case, "weights", "draft_weights", taken, shown["draft_weights"], WITH_LOAD)


# --- records ------------------------------------------------------------------------------------


def _gpus(case: Retold) -> int | None:
    ranks = case.row.gpus or case.row.tp or 1
    return ranks if ranks > case.gpu.devices_per_node else None


def _record(
    case: Retold,
    check: Check,
    name: str,
    predicted: int,
    reading: Reading,
    tolerance: float | None,
) -> dict[str, Any]:
    """``tolerance`` in per cent, on top of the print's rounding; None allows the rounding alone."""
    difference = reading.value - predicted
    slack = reading.slack
    allowed = slack if tolerance is None else max(slack + reading.value * tolerance / 100, 1)
    row = case.row
    return {
        "row": row.id,
        "check": check,
        "component": name,
        "unit": "bytes" if name in POOLS or name.endswith("weights") else "count",
        "predicted": predicted,
        "measured": reading.value,
        "difference": difference,
        "percent": 100 * difference / reading.value if reading.value else 0.0,
        "tolerance_percent": tolerance or 0.0,
        "within": abs(difference) <= allowed,
        "release": case.release,
        "release_from": case.release_from,
        "gpu": case.gpu.id,
        "gpu_stands_in": case.gpu_stands_in,
        "model": case.model,
        "confidence": row.confidence,
        "explanation": explanations().get((row.id, check), {}).get(name, ""),
    }
