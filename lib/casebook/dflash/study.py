"""A training study: train from a store of hidden states, and measure acceptance on unseen prompts.

Training accuracy is not the measure; the acceptance length of the drafter in the real decoding loop
is, beside what an untrained drafter and repeating the last token reach on the same prompts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import pandas as pd
from tqdm.auto import tqdm

from casebook.dflash.batch import Sample
from casebook.dflash.feed import Order
from casebook.dflash.generate import DrafterProposer, Proposer, RepeatProposer, generate
from casebook.dflash.hidden import HiddenStore
from casebook.dflash.metrics import zlab_tau
from casebook.dflash.model import Drafter
from casebook.dflash.target import HFTarget
from casebook.dflash.trainer import StepRecord, Trainer


@dataclass(frozen=True)
class Acceptance:
    """One proposer over a set of prompts."""

    tau_tokens: float
    """Mean A + 1 per response, then over responses (z-lab)."""
    first_token_share: float
    """Steps that accepted at least one drafted token."""
    steps: int
    lossless_share: float
    """Responses equal to the target's own text."""


def acceptance(
    target: HFTarget, make: Callable[[], Proposer], held_out: Sequence[Sample], max_new_tokens: int
) -> Acceptance:
    """Serve the prompts of ``held_out`` (whose completions are the target's own) and count."""
    taken, same = [], 0
    for sample in held_out:
        prompt = sample.input_ids[sample.loss_mask == 0]
        own = sample.input_ids[sample.loss_mask > 0].tolist()
        limit = min(max_new_tokens, len(own))
        run = generate(target, make(), prompt, limit, {own[-1]} if len(own) <= limit else ())
        taken.append(run.whole_steps)
        same += list(run.tokens) == own[: len(run.tokens)]
    flat = [a for steps in taken for a in steps]
    first = sum(a > 0 for a in flat) / len(flat) if flat else float("nan")
    return Acceptance(zlab_tau(taken), first, len(flat), same / len(held_out))


def baselines(
    target: HFTarget, untrained: Drafter, held_out: Sequence[Sample], max_new_tokens: int
) -> pd.DataFrame:
    """What a drafter must beat: itself untrained, and repeating the last token."""
    makers: dict[str, Callable[[], Proposer]] = {
        "untrained drafter": lambda: DrafterProposer(untrained.eval(), target),
        "repeat the last token": lambda: RepeatProposer(untrained.config.block_size),
    }
    found = {n: asdict(acceptance(target, m, held_out, max_new_tokens)) for n, m in makers.items()}
    return pd.DataFrame(found).T


def train_and_measure(
    trainer: Trainer,
    store: HiddenStore,
    order: Order,
    target: HFTarget,
    held_out: Sequence[Sample],
    every: int,
    max_new_tokens: int = 48,
    seconds: float | None = None,
    untrained: Mapping[str, float] | None = None,
    shown: Callable[[pd.DataFrame, pd.DataFrame], None] | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Train to the end (or for ``seconds``), measuring acceptance every ``every`` steps.

    Returns the steps' records and the curve: step, training seconds, tokens seen, acceptance.
    ``untrained`` is what :func:`baselines` found at step 0, which is then not measured again.
    ``shown`` is called with both after each measurement, for a live plot.
    """
    records: list[StepRecord] = []
    curve: list[dict[str, float]] = []
    spent = 0.0

    def measure() -> None:
        trainer.drafter.eval()
        found = acceptance(
            target, lambda: DrafterProposer(trainer.drafter, target), held_out, max_new_tokens
        )
        trainer.drafter.train()
        tokens = sum(r.scored_slots for r in records)
        curve.append(
            {"step": trainer.done, "train_seconds": spent, "scored_slots": tokens, **asdict(found)}
        )
        if shown:
            shown(pd.DataFrame(records), pd.DataFrame(curve))

    if untrained is None:
        measure()
    else:
        curve.append({"step": trainer.done, "train_seconds": 0.0, "scored_slots": 0, **untrained})
    bar = tqdm(range(trainer.done, trainer.settings.steps), desc="train", unit="step")
    for step in bar:
        started = time.perf_counter()
        records.append(trainer.step([store.batch(m) for m in order.indices(step, 0)]))
        spent += time.perf_counter() - started
        bar.set_postfix(loss=f"{records[-1].loss_nats:.2f}")
        over = seconds is not None and spent > seconds
        if trainer.done % every == 0 or trainer.done == trainer.settings.steps or over:
            measure()
        if over:
            break
    return pd.DataFrame(records), pd.DataFrame(curve)
