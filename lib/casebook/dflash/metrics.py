"""Acceptance lengths: four definitions that differ, each under its own name.

A verification step takes a block of one known token and B - 1 drafted ones; A of these are accepted
and the target adds one token of its own (the bonus), so A + 1 tokens are committed. Figures from
different programs count the bonus, the first token or the averaging differently; see each function.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from torch import Tensor


def accepted(drafted: Tensor, target: Tensor) -> Tensor:
    """How many leading drafted tokens equal the target's, int64 ``[...]`` of ``[..., B-1]`` both."""
    return (drafted == target).long().cumprod(-1).sum(-1)


def zlab_tau(per_response: Sequence[Sequence[int]]) -> float:
    """z-lab: mean of A + 1 over the steps of a response, then over responses."""
    means = [sum(a + 1 for a in steps) / len(steps) for steps in per_response if steps]
    return sum(means) / len(means) if means else float("nan")


def sglang_accept_length(completion_tokens: int, verify_steps: int) -> float:
    """SGLang ``spec_accept_length``: all output tokens, the prefill's first one too, per step."""
    return completion_tokens / verify_steps if verify_steps else float("nan")


def vllm_mean_length(accepted_tokens: int, drafts: int) -> float:
    """vLLM: 1 + accepted drafted tokens per draft."""
    return 1 + accepted_tokens / drafts if drafts else float("nan")


def speculators_eal(position_accuracy: Sequence[float]) -> float:
    """speculators: sum over k of the product of marginal accuracies up to k; no bonus token."""
    total, product = 0.0, 1.0
    for accuracy in position_accuracy:
        product *= accuracy
        total += product
    return total


def training_lengths(predicted: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """A + 1 of each block whose B - 1 slots are all scored: float32 ``[blocks]`` of ``[b, N, B]``.

    Blocks cut by the end of the text are left out: counting their missing slots as right (as
    SpecForge's ``compute_accept_len`` does) flatters, counting them as wrong belittles.
    """
    whole = (mask[..., 1:] > 0).all(-1)
    lengths = accepted(predicted[..., 1:], labels[..., 1:]) + 1
    return lengths[whole].float()


def by_position(predicted: Tensor, labels: Tensor, mask: Tensor) -> pd.DataFrame:
    """Per slot: share right on its own, share with all slots up to it right, and how many slots.

    ``[b, N, B]`` each; one row a slot 1..B-1. Shares are taken over scored slots.
    """
    right = (predicted == labels) & (mask > 0)
    prefix = right[..., 1:].long().cumprod(-1)
    scored = (mask[..., 1:] > 0).sum((0, 1)).clamp(min=1)
    return pd.DataFrame(
        {
            "slot": range(1, labels.shape[-1]),
            "accuracy_share": (right[..., 1:].sum((0, 1)) / scored).tolist(),
            "accepted_share": (prefix.sum((0, 1)) / scored).tolist(),
            "scored_slots": (mask[..., 1:] > 0).sum((0, 1)).tolist(),
        }
    )
