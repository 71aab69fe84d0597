"""Labels, weights and the loss of a packed pass, without ever holding all logits.

Slot k of the block at anchor a is trained on the token at a + k: the *same* position, not the next
one. Slot 0 is the anchor itself and is never scored. Later slots weigh less,
``exp(-(k-1)/gamma)``, for a wrong token ends the accepted prefix and what follows it is wasted.

A vocabulary of 248,320 words times 8,192 slots is 8 GB of float32 logits. So the cross entropy goes
through the frozen head in pieces, and each piece leaves only its loss and its gradient towards the
hidden states behind (the head is frozen, so nothing else is needed in the backward pass).
Sources: SpecForge 0.2.0 ``OnlineDFlashModel`` (labels, weights, decay).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from casebook.dflash.masks import Blocks

LOGIT_BYTES = 64 << 20
"""How much the float32 logits of one piece may take."""


def labels(input_ids: Tensor, blocks: Blocks) -> Tensor:
    """int64 ``[b, N, B]``: the token at each slot's own position (the last one beyond the end)."""
    at = blocks.positions().clamp(max=input_ids.shape[1] - 1)
    return input_ids.gather(1, at).unflatten(1, (-1, blocks.block_size))


def label_mask(loss_mask: Tensor, blocks: Blocks) -> Tensor:
    """float32 ``[b, N, B]``: 1 for slots 1.. of kept blocks whose position is supervised, else 0."""
    at = blocks.positions()
    inside = at < loss_mask.shape[1]
    supervised = loss_mask.gather(1, at.clamp(max=loss_mask.shape[1] - 1)) > 0.5
    wanted = (supervised & inside).unflatten(1, (-1, blocks.block_size))
    wanted = wanted & blocks.keep[..., None]
    wanted[..., 0] = False
    return wanted.float()


def decay(block_size: int, gamma: float | None) -> Tensor:
    """float32 ``[B]``: ``exp(-(k-1)/gamma)``, 1 at slots 0 and 1; all 1 where gamma is None."""
    far = [0 if gamma is None else max(0, slot - 1) / gamma for slot in range(block_size)]
    return torch.tensor([math.exp(-x) for x in far], dtype=torch.float32)


@dataclass(frozen=True)
class LossTerms:
    """Sums over one batch; divide only after adding up all batches of a step, on all ranks."""

    numerator: Tensor
    """Sum of weight * cross entropy, float32, with a gradient."""
    denominator: Tensor
    """Sum of the weights, float32."""
    predicted: Tensor
    """int64 ``[b, N, B]``: the drafter's choice, -1 where the slot is not scored."""
    labels: Tensor
    """int64 ``[b, N, B]``."""
    mask: Tensor
    """float32 ``[b, N, B]``: 1 where the slot is scored."""

    @property
    def loss(self) -> Tensor:
        """The weighted mean cross entropy of this batch alone."""
        return self.numerator / self.denominator

    @property
    def correct(self) -> Tensor:
        """How many scored slots have the right token, float32."""
        return ((self.predicted == self.labels) * self.mask).sum()

    @property
    def scored(self) -> Tensor:
        """How many slots are scored, float32."""
        return self.mask.sum()


def loss_terms(
    out: Tensor, head: Tensor, wanted: Tensor, mask: Tensor, weights: Tensor
) -> LossTerms:
    """The loss of drafter outputs ``out`` ``[b, N*B, H]`` through the head's weight ``[V, H]``.

    ``wanted`` and ``mask`` are ``[b, N, B]``, ``weights`` ``[B]``. Slots with mask 0 cost nothing.
    """
    at = mask.flatten().nonzero()[:, 0]
    weight = (mask * weights.to(mask.device)).flatten()[at]
    numerator, chosen = _HeadLoss.apply(out.flatten(0, 1)[at], head, wanted.flatten()[at], weight)
    predicted = torch.full(wanted.shape, -1, device=wanted.device)
    predicted.view(-1)[at] = chosen
    return LossTerms(numerator, weight.sum(), predicted, wanted, mask)


class _HeadLoss(torch.autograd.Function):
    """Weighted cross entropy through a frozen head, in pieces of at most LOGIT_BYTES of logits."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, head: Tensor, wanted: Tensor, weight: Tensor) -> Any:
        piece = max(1, LOGIT_BYTES // (4 * head.shape[0]))
        total = torch.zeros((), dtype=torch.float32, device=rows.device)
        chosen = torch.empty_like(wanted)
        needed = ctx.needs_input_grad[0]
        gradient = torch.empty_like(rows) if needed else None
        for start in range(0, len(rows), piece):
            part = slice(start, start + piece)
            logits = F.linear(rows[part], head).float()
            top, best = logits.max(-1, keepdim=True)
            chosen[part] = best[:, 0]
            picked, weighed = wanted[part, None], weight[part, None]
            right = logits.gather(1, picked)
            # log-sum-exp in place: one float32 copy of the piece is all that ever stands.
            exps = logits.sub_(top).exp_()
            sums = exps.sum(-1, keepdim=True)
            total += (sums.log().add_(top).sub_(right) * weighed).sum()
            if gradient is not None:  # of each logit: weight * (probability - 1 where it is right)
                exps.mul_(weighed / sums).scatter_add_(1, picked, -weighed)
                gradient[part] = exps.to(head.dtype) @ head
        if gradient is not None:
            ctx.save_for_backward(gradient)
        ctx.mark_non_differentiable(chosen)
        return total, chosen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, _grad_chosen: Tensor) -> Any:  # type: ignore[override]
        (gradient,) = ctx.saved_tensors
        return gradient * grad_total.to(gradient.dtype), None, None, None
