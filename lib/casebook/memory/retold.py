"""A published start-up told again as a launch that a release can be asked about.

People leave out the release, the model path or the exact device. What stands in for it is chosen here,
by one rule each, and said: a comparison must not hide that it asked a neighbouring release.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Literal

from packaging.version import Version

from casebook.catalog.flags import load_flags
from casebook.catalog.gpus import MIB, GpuProfile, gpu
from casebook.catalog.models import load_models, model
from casebook.catalog.releases import load_releases
from casebook.launch import Launch
from casebook.measure import Published, published

Origin = Literal["stated", "near", "by date", "assumed"]
"""Where a release comes from: the source states it; it states a build near it; the newest on its day; none
of these, so the newest on the day of the first start-up of these layers in the collection."""


@dataclass(frozen=True)
class StandIn:
    """A catalog profile for a device that the catalog has not: same vendor and kernels, other memory."""

    stated: str
    """A pattern for the source's own words."""
    profile: str
    smi_total_mib: int
    name: str


STAND_INS = (
    StandIn("4090 Laptop", "L40S", 16376, "RTX 4090 Laptop"),
    StandIn("RTX 4090", "L40S", 24564, "RTX 4090"),
    StandIn("6000 Ada", "L40S", 49140, "RTX 6000 Ada"),
    StandIn("RTX 3090", "A100-80", 24576, "RTX 3090"),
    StandIn("GB10|DGX Spark", "RTX PRO 6000", 124610, "GB10"),
    StandIn("MI355X", "MI300X", 294896, "MI355X"),
    StandIn("gfx1151", "MI300X", 98304, "Radeon 8060S"),
    StandIn("94.50 GiB", "H100", 97871, "GPU of 94.5 GiB"),
    StandIn("80GB-class|limited to 80GB", "H100", 81559, "GPU of 80 GB"),
    StandIn("16GB", "L40S", 16380, "GPU of 16 GB"),
)
"""Totals as ``nvidia-smi`` prints them; GB10's is its one pool, which its logs call GPU memory."""


@dataclass(frozen=True)
class Retold:
    """One published start-up, ready to be asked about."""

    row: Published
    launch: Launch
    model: str
    release: str
    release_from: Origin
    gpu: GpuProfile
    gpu_stands_in: bool
    notes: tuple[str, ...] = ()


def retell(row: Published) -> Retold | str:
    """The launch, release and device of a row, or in one sentence why there are none."""
    if row.layers_model is None:
        return "The catalog has no model with these layers."
    if row.dp and row.dp > 1:
        return "Ranks of data parallel attention are not told apart."
    profile, stands_in = _device(row)
    if profile is None:
        return f"No profile stands for {row.stated_gpu}."
    words = _words(row)
    release, origin, notes = _release(row, words)
    return Retold(
        row=row,
        launch=Launch(("--model-path", row.layers_model, *words)),
        model=row.layers_model,
        release=release,
        release_from=origin,
        gpu=profile,
        gpu_stands_in=stands_in,
        notes=notes,
    )


def _device(row: Published) -> tuple[GpuProfile | None, bool]:
    if row.gpu is not None:
        return gpu(row.gpu), False
    for known in STAND_INS:
        if re.search(known.stated, row.stated_gpu):
            return _with_memory(known), True
    return None, True


def _with_memory(known: StandIn) -> GpuProfile:
    """The profile with another memory, of which torch sees the same share."""
    profile = gpu(known.profile)
    share = profile.torch_total_bytes / (profile.smi_total_mib * MIB)
    changed = {
        "id": known.name,
        "smi_total_mib": known.smi_total_mib,
        "torch_total_bytes": int(known.smi_total_mib * MIB * share),
        "free_at_start_gib": None,
    }
    return profile.model_copy(update=changed)


def _words(row: Published) -> tuple[str, ...]:
    """The published flags, as a release reads them: one spelling of FP8, ranks and a drafter if left out."""
    words = list(row.flags)
    for position, word in enumerate(words):
        if word == "--kv-cache-dtype" and words[position + 1] == "fp8":
            words[position + 1] = "fp8_e4m3"
    if row.tp and row.tp > 1 and not {"--tp", "--tp-size"} & set(words):
        words += ["--tp-size", str(row.tp)]
    drafts = Launch(tuple(words)).value_of("--speculative-num-draft-tokens")
    chained = {"EAGLE", "NEXTN"} & set(words)  # SGLang wants all three of their figures, or none
    if drafts and chained and "--speculative-num-steps" not in words:
        words += ["--speculative-num-steps", str(int(drafts) - 1), "--speculative-eagle-topk", "1"]
    if "auto_map" in model(str(row.layers_model)).config():
        words.append("--trust-remote-code")
    if "DFLASH" in words and "--speculative-draft-model-path" not in words:
        words += ["--speculative-draft-model-path", _drafter(row)]
    return tuple(words)


def _drafter(row: Published) -> str:
    """The catalog's drafter for these layers: the one whose name shares most with the target's."""
    target = re.findall(r"[a-z]+|[\d.]+b?", str(row.layers_model).rpartition("/")[2].lower())
    drafters = [name for name, facts in load_models().items() if facts.family == "DFlash drafter"]
    return max(drafters, key=lambda name: sum(part in name.lower() for part in target))


def _release(row: Published, words: Sequence[str]) -> tuple[str, Origin, tuple[str, ...]]:
    known = list(load_releases())
    origin: Origin
    if row.release in known:
        return str(row.release), "stated", ()
    if found := re.search(r"0\.5\.\d+(\.post\d+)?", row.release or row.stated_release):
        older = [v for v in known if Version(v) <= Version(found.group())]
        chosen, origin = (older or known)[-1 if older else 0], "near"
    elif day := _day(row):
        chosen, origin = _newest(day), "by date"
    else:
        chosen, origin = _newest(_first_day(str(row.layers_model))), "assumed"
    fit = [v for v in known if all(_knows(v, word) for word in words if word.startswith("--"))]
    if fit and chosen not in fit:
        at = known.index(chosen)
        nearest = min(fit, key=lambda v: abs(known.index(v) - at))
        return (
            nearest,
            origin,
            (f"{chosen} does not know all flags; the nearest that does is asked.",),
        )
    return chosen, origin, ()


def _day(row: Published) -> str:
    """The day of a start-up, or the first of the month that the notes give."""
    about = re.search(r"Date approximate: (\d{4}-\d\d)", row.notes)
    return row.date or (f"{about.group(1)}-01" if about else "")


@functools.lru_cache(maxsize=64)
def _first_day(name: str) -> str:
    days = [_day(row) for row in published() if row.layers_model == name]
    return min((day for day in days if day), default="2026-05-05")


def _newest(day: str) -> str:
    """The newest release of a day, else the oldest of all."""
    known = list(load_releases())
    out = [v for v, facts in load_releases().items() if facts.uploaded <= date.fromisoformat(day)]
    return out[-1] if out else known[0]


def later(case: Retold, count: int = 4) -> list[Retold]:
    """The same start-up on the next releases: for a build whose nearest release lacks what it used."""
    if case.release_from == "stated":
        return []
    known = list(load_releases())
    at = known.index(case.release)
    note = f"{case.release} does not take these flags; a later release is asked."
    return [
        replace(case, release=release, notes=(*case.notes, note))
        for release in known[at + 1 : at + 1 + count]
    ]


def _knows(release: str, flag: str) -> bool:
    spans = load_flags().get(flag.partition("=")[0])
    return spans is None or any(span.covers(release) for span in spans)
