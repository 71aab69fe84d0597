"""``recommend(...)``: flags that reach a number of requests at a context length, and what else would.

Each alternative is searched by the closed form, then proved: the release's own code must resolve the
flags (a trace) and size the pools (a dry run). What SGLang rejects is told, never recommended.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from casebook.catalog.gpus import GIB, GpuProfile
from casebook.errors import MemoryPlanError
from casebook.launch import Launch
from casebook.measure import Calibration
from casebook.memory.plan import HEADROOM_BYTES, MemoryPlan, plan
from casebook.memory.sweep import flag_name, sweep
from casebook.resolution.sweep import grid_launches
from casebook.resolution.trace import model_facts, trace

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
    asked = _Asked(concurrency, context, release, gpu, calibration, headroom_bytes)
    always = ["--model-path", model, "--max-running-requests", str(concurrency)]
    always += shlex.split(extra_flags)
    ways = _ways(release, speculative, draft_tokens, tp, bool(model_facts(model).state_layers))
    options = [
        _option(asked, way, Launch.of([*always, *way.flags]))
        for way in tqdm(ways, desc="options", disable=not progress, leave=False)
    ]
    ranked = sorted(options, key=lambda o: not o.works)  # stable: what costs least stays first
    how = f" with {speculative}" if speculative else ""
    return Recommendation(f"{asked}{how}", tuple(ranked))


@dataclass(frozen=True)
class _Asked:
    concurrency: int
    context: int
    release: str
    gpu: str | GpuProfile
    calibration: Calibration | None
    headroom_bytes: int

    @property
    def tokens(self) -> int:
        return self.concurrency * self.context

    def plan(self, launch: Launch) -> MemoryPlan:
        return plan(
            launch,
            gpu=self.gpu,
            release=self.release,
            calibration=self.calibration,
            headroom_bytes=self.headroom_bytes,
        )

    def refusal(self, launch: Launch) -> str:
        """What SGLang says against the launch; empty where it starts."""
        outcome = trace(launch, release=self.release, gpu=self.gpu).outcome
        return "" if outcome.starts else f"SGLang refuses: {outcome.sentence}"

    def __str__(self) -> str:
        where = self.gpu if isinstance(self.gpu, str) else self.gpu.id
        return (
            f"{self.concurrency} requests of {self.context:,} tokens on {where}, "
            f"SGLang {self.release}"
        )


@dataclass(frozen=True)
class _Way:
    """One way to try: what it is called, what it costs beside memory, the flags that make it."""

    name: str
    price: str
    flags: tuple[str, ...]


def _ways(
    release: str, speculative: str | None, draft_tokens: int | None, tp: int, has_state: bool
) -> list[_Way]:
    """What to try, the cheapest first. Choices that a release does not have it refuses itself."""
    flag = flag_name("strategy", release)
    speculates = ("--speculative-algorithm", speculative) if speculative else ()
    drafts = _drafts(draft_tokens) if speculative and draft_tokens else ()

    def way(name: str, price: str, *flags: str, ranks: int = tp, few: bool = False) -> _Way:
        split = ("--tp-size", str(ranks)) if ranks > 1 else ()
        return _Way(name, price, (*split, *speculates, *(_drafts(2) if few else drafts), *flags))

    twice = f"tensor parallel {2 * tp}"
    if not has_state:
        plain = [way("as it is", "nothing")]
        fewer = [way("two draft tokens", "fewer tokens accepted a step", few=True)]
        doubled = [way(twice, "twice the GPUs", ranks=2 * tp)]
        return [*plain, *(fewer if speculative else []), *doubled]
    extra = (flag, "extra_buffer")
    found = [
        way("extra_buffer", "two more slots a request", *extra),
        way("extra_buffer_lazy", "one more slot a request", flag, "extra_buffer_lazy"),
        way("radix cache off", "no prefix is reused", "--disable-radix-cache"),
        way(
            "bfloat16 state",
            "a coarser state; check quality",
            *extra,
            "--mamba-ssm-dtype",
            "bfloat16",
        ),
    ]
    if speculative:
        found.append(way("two draft tokens", "fewer tokens accepted a step", *extra, few=True))
    else:
        found.insert(0, way("no_buffer", "no overlap with the radix cache", flag, "no_buffer"))
    return [*found, way(twice, "twice the GPUs", *extra, ranks=2 * tp)]


def _drafts(count: int) -> tuple[str, ...]:
    return (
        *("--speculative-num-steps", str(count - 1)),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(count)),
    )


def _option(asked: _Asked, way: _Way, launch: Launch) -> Option:
    """Search the fractions of one way, and prove the middle of those that work."""
    blank = Option(way.name, way.price, (), False, "")
    if refusal := asked.refusal(launch):
        return replace(blank, reason=refusal)
    first = asked.plan(launch)
    slots = asked.concurrency * (first.slots_per_request or 0)
    if slots:
        launch = _with(launch, "--max-mamba-cache-size", slots)
    points = sweep(
        launch,
        {"mem_fraction_static": FRACTIONS},
        release=asked.release,
        gpu=asked.gpu,
        calibration=_weighed(first, asked.calibration),
        headroom_bytes=asked.headroom_bytes,
        progress=False,
    ).table
    if "tokens" not in points:
        return replace(blank, reason=str(points["reason"].iloc[0]))
    good = points[
        (points["verdict"] == "starts")
        & (points["tokens"] >= asked.tokens).fillna(False)
        & (points["requests"] >= asked.concurrency).fillna(False)
    ]
    if good.empty:
        return replace(blank, reason=_against(points, asked))
    fractions = [float(fraction) for fraction in good["mem_fraction_static"]]
    fraction = fractions[len(fractions) // 2]
    numbers = ["--max-running-requests", str(asked.concurrency)]
    numbers += ["--max-mamba-cache-size", str(slots)] if slots else []
    numbers += ["--mem-fraction-static", str(fraction)]
    found = replace(blank, flags=(*way.flags, *numbers), fractions=(fractions[0], fractions[-1]))
    return _proved(asked, found, _with(launch, "--mem-fraction-static", fraction))


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


def _proved(asked: _Asked, option: Option, launch: Launch) -> Option:
    """The option after SGLang's own code has resolved and sized it."""
    if refusal := asked.refusal(launch):
        return replace(option, flags=(), reason=refusal)
    made = asked.plan(launch)
    over = (made.tokens or 0) - asked.tokens
    if made.verdict != "starts" or over < 0 or (made.requests or 0) < asked.concurrency:
        return replace(option, flags=(), reason=f"The dry run says otherwise: {made.reason}")
    spare = (made.left_bytes or 0) - asked.headroom_bytes
    low, high = option.fractions or (0.0, 0.0)
    parts = ("conv_state", "ssm_state", "intermediate_ssm", "intermediate_conv")
    return replace(
        option,
        works=True,
        reason=(
            f"{over:,} tokens and {spare / GIB:.1f} GiB to spare; works with "
            f"--mem-fraction-static from {low} to {high}."
        ),
        spare_tokens=over,
        spare_bytes=spare,
        state_bytes=sum(made.of(part) for part in parts),
        made=made,
    )


def _against(points: pd.DataFrame, asked: _Asked) -> str:
    """What stands against it: the best that was found, and which of the two ends it fails at."""
    starts = points[points["verdict"] == "starts"]
    if starts.empty:
        reasons = points["reason"].value_counts()
        return f"No --mem-fraction-static works; most often: {reasons.index[0]}."
    requests = int(starts["requests"].max())
    if requests < asked.concurrency:
        return f"At most {requests} of {asked.concurrency} requests run."
    most = int(starts["tokens"].max())
    return f"At most {most:,} of the {asked.tokens:,} tokens fit beside the state and the headroom."
