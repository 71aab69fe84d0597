"""``recommend(...)``: flags that reach a number of requests at a context length, and what else would.

Each alternative is searched by the closed form, then proved: the release's own code must resolve the
flags (a trace) and size the pools (a dry run). What SGLang rejects is told, never recommended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from packaging.version import Version
from tqdm.auto import tqdm

from casebook.catalog.gpus import GpuProfile
from casebook.errors import MemoryPlanError
from casebook.launch import Launch
from casebook.measure import Calibration
from casebook.memory.dry_run import GIB
from casebook.memory.plan import HEADROOM_BYTES, MemoryPlan, plan
from casebook.memory.sweep import flag_name, sweep
from casebook.resolution.sweep import grid_launches
from casebook.resolution.trace import trace

FRACTIONS = tuple(round(float(f), 3) for f in np.arange(0.30, 0.981, 0.01))


@dataclass(frozen=True)
class Option:
    """One way to serve what was asked, or why it does not."""

    name: str
    price: str
    """What it costs beside memory, in a few words."""
    flags: tuple[str, ...]
    """Words for the command line; empty where it does not work."""
    works: bool
    reason: str
    """One sentence: the margin, or what stands against it."""
    fractions: tuple[float, float] | None = None
    """The least and the greatest ``mem_fraction_static`` that work."""
    spare_tokens: int | None = None
    spare_bytes: int | None = None
    """Free behind the pools beyond the headroom."""
    state_bytes: int | None = None
    """What slots and intermediate states take."""
    made: MemoryPlan | None = field(default=None, repr=False)

    @property
    def command(self) -> str:
        """The whole command line; empty where it does not work."""
        return self.made.launch.lines() if self.works and self.made is not None else ""


@dataclass(frozen=True)
class Recommendation:
    """All options: those that work first, and among them what costs least."""

    asked: str
    options: tuple[Option, ...]

    @property
    def best(self) -> Option | None:
        """The first that works: what costs least comes first. None where none works."""
        return next((o for o in self.options if o.works), None)

    def table(self) -> pd.DataFrame:
        """A row per option."""
        rows = [
            {
                "option": o.name,
                "works": o.works,
                "flags": " ".join(o.flags),
                "fraction_from": o.fractions[0] if o.fractions else None,
                "fraction_to": o.fractions[1] if o.fractions else None,
                "spare_tokens": o.spare_tokens,
                "spare_GiB": None if o.spare_bytes is None else round(o.spare_bytes / GIB, 2),
                "state_GiB": None if o.state_bytes is None else round(o.state_bytes / GIB, 2),
                "price": o.price,
                "reason": o.reason,
            }
            for o in self.options
        ]
        return pd.DataFrame(rows).astype({"spare_tokens": "Int64"})


def recommend(
    model: str,
    gpu: str | GpuProfile = "B200",
    release: str = "0.5.11",
    *,
    concurrency: int,
    context: int,
    speculative: str | None = None,
    draft_tokens: int | None = None,
    tp: int = 1,
    extra_flags: str = "",
    calibration: Calibration | None = None,
    headroom_bytes: int = HEADROOM_BYTES,
    progress: bool = True,
) -> Recommendation:
    """Flags with which ``concurrency`` requests of ``context`` tokens each run at the same time.

    ``speculative`` is an algorithm (``NEXTN``), ``draft_tokens`` how many it drafts a step. Raises
    MemoryPlanError for numbers that mean nothing; that nothing works is an answer, not an error.
    """
    for name, value in (("concurrency", concurrency), ("context", context), ("tp", tp)):
        if value < 1:
            raise MemoryPlanError(f"{name} must be at least 1; it is {value}.")
    options = []
    chosen = _alternatives(release, speculative, draft_tokens, tp)
    for name, price, flags in tqdm(chosen, desc="options", disable=not progress, leave=False):
        words = f"--model-path {model} --max-running-requests {concurrency} {extra_flags}".split()
        held = Launch.of(["--model-path", model, *words[2:], *flags])
        options.append(
            _option(
                (name, price, held, tuple(flags)),
                (concurrency, context),
                {"release": release, "gpu": gpu, "calibration": calibration},
                headroom_bytes,
            )
        )
    ranked = sorted(options, key=lambda o: not o.works)  # stable: what costs least stays first
    how = f" with {speculative}" if speculative else ""
    where = gpu if isinstance(gpu, str) else gpu.id
    asked = f"{concurrency} requests of {context:,} tokens{how} on {where}, SGLang {release}"
    return Recommendation(asked, tuple(ranked))


def _alternatives(
    release: str, speculative: str | None, draft_tokens: int | None, tp: int
) -> list[tuple[str, str, list[str]]]:
    strategy = flag_name("strategy", release)
    base = ["--tp-size", str(tp)] if tp > 1 else []
    drafts: list[str] = []
    if speculative:
        base += ["--speculative-algorithm", speculative]
        drafts = _drafts(draft_tokens) if draft_tokens else []
    extra = [strategy, "extra_buffer"]
    found = [
        ("extra_buffer", "two more slots a request", [*base, *drafts, *extra]),
        ("radix cache off", "no prefix is reused", [*base, *drafts, "--disable-radix-cache"]),
        ("bfloat16 state", "a coarser state; check quality", [
            *base, *drafts, *extra, "--mamba-ssm-dtype", "bfloat16",
        ]),
        (f"tensor parallel {2 * tp}", "twice the GPUs", [
            *_doubled(base, tp), *drafts, *extra,
        ]),
    ]  # fmt: skip
    if Version(release) >= Version("0.5.13"):
        lazy = [*base, *drafts, strategy, "extra_buffer_lazy"]
        found.insert(1, ("extra_buffer_lazy", "one more slot a request", lazy))
    if speculative:
        fewer = [*base, *_drafts(2), *extra]
        found.insert(-1, ("two draft tokens", "fewer tokens accepted a step", fewer))
    else:
        found.insert(
            0, ("no_buffer", "no overlap with the radix cache", [*base, strategy, "no_buffer"])
        )
    return found


def _drafts(count: int) -> list[str]:
    names = (
        "--speculative-num-steps",
        "--speculative-eagle-topk",
        "--speculative-num-draft-tokens",
    )
    values = (count - 1, 1, count)
    return [word for name, value in zip(names, values, strict=True) for word in (name, str(value))]


def _doubled(base: list[str], tp: int) -> list[str]:
    rest = base[2:] if tp > 1 else base
    return ["--tp-size", str(2 * tp), *rest]


def _option(
    what: tuple[str, str, Launch, tuple[str, ...]],
    wanted: tuple[int, int],
    where: Mapping[str, Any],
    headroom: int,
) -> Option:
    name, price, launch, flags = what
    concurrency, context = wanted
    release, gpu = where["release"], where["gpu"]
    refused = trace(launch, release=release, gpu=gpu).outcome
    if not refused.starts:
        return Option(name, price, (), False, f"SGLang refuses: {refused.sentence}")
    first = plan(launch, gpu=gpu, release=release, calibration=where["calibration"])
    needed = concurrency * (first.slots_per_request or 0)
    if needed:
        launch = _with(launch, "--max-mamba-cache-size", needed)
    points = sweep(
        launch,
        {"mem_fraction_static": FRACTIONS},
        release=release,
        gpu=gpu,
        calibration=_weighed(first, where["calibration"]),
        headroom_bytes=headroom,
        progress=False,
    ).table
    if "tokens" not in points:
        return Option(name, price, (), False, str(points["reason"].iloc[0]))
    tokens = concurrency * context
    good = points[
        (points["verdict"] == "starts")
        & (points["tokens"] >= tokens).fillna(False)
        & (points["requests"] >= concurrency).fillna(False)
    ]
    if good.empty:
        return Option(name, price, (), False, _against(points, tokens, concurrency))
    low, high = float(good["mem_fraction_static"].min()), float(good["mem_fraction_static"].max())
    middle = good.iloc[len(good) // 2]
    held = _with(launch, "--mem-fraction-static", middle["mem_fraction_static"])
    found = Option(name, price, (), True, "", (low, high))
    return _proved(found, held, flags, needed, (concurrency, tokens), where, headroom)


def _weighed(first: MemoryPlan, calibration: Calibration | None) -> Calibration:
    """A calibration with the weights of a plan, so that no model is constructed a second time."""
    return replace(
        calibration or Calibration(),
        weights_bytes=first.of("weights"),
        draft_weights_bytes=first.of("draft_weights"),
    )


def _with(launch: Launch, option: str, value: Any) -> Launch:
    ((_, made),) = grid_launches(launch, {option: [value]})
    return made


def _proved(
    option: Option,
    launch: Launch,
    flags: tuple[str, ...],
    slots: int,
    wanted: tuple[int, int],
    where: Mapping[str, Any],
    headroom: int,
) -> Option:
    """The option after SGLang's own code has resolved and sized it."""
    release, gpu = where["release"], where["gpu"]
    concurrency, tokens = wanted
    outcome = trace(launch, release=release, gpu=gpu).outcome
    if not outcome.starts:
        return replace(option, works=False, reason=f"SGLang refuses: {outcome.sentence}")
    made = plan(
        launch,
        gpu=gpu,
        release=release,
        calibration=where["calibration"],
        headroom_bytes=headroom,
    )
    enough = (made.tokens or 0) >= tokens and (made.requests or 0) >= concurrency
    if made.verdict != "starts" or not enough:
        return replace(option, works=False, reason=f"The dry run says otherwise: {made.reason}")
    fraction = launch.value_of("--mem-fraction-static") or ""
    words = [*flags, "--max-running-requests", str(concurrency)]
    words += ["--max-mamba-cache-size", str(slots)] if slots else []
    words += ["--mem-fraction-static", fraction]
    spare = (made.left_bytes or 0) - headroom
    over = (made.tokens or 0) - tokens
    parts = ("conv_state", "ssm_state", "intermediate_ssm", "intermediate_conv")
    return replace(
        option,
        flags=tuple(words),
        reason=(
            f"{over:,} tokens and {spare / GIB:.1f} GiB to spare; works with "
            f"--mem-fraction-static from {option.fractions[0]} to {option.fractions[1]}."
            if option.fractions
            else ""
        ),
        spare_tokens=over,
        spare_bytes=spare,
        state_bytes=sum(made.of(part) for part in parts),
        made=made,
    )


def _against(points: pd.DataFrame, tokens: int, concurrency: int) -> str:
    """What stands against it: the best that was found, and which of the two ends it fails at."""
    starts = points[points["verdict"] == "starts"]
    if starts.empty:
        reasons = points["reason"].value_counts()
        return f"No --mem-fraction-static works; most often: {reasons.index[0]}."
    most = int(starts["tokens"].max())
    requests = int(starts["requests"].max())
    if requests < concurrency:
        return f"At most {requests} of {concurrency} requests run."
    return f"At most {most:,} of the {tokens:,} tokens fit beside the state and the headroom."
