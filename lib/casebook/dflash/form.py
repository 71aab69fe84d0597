"""How a batch becomes a loss: every decision that must be right, each in a field of its own.

A training run is sound when all of these are; the faults people have reported are each one of them
gone wrong. So they are fields: the trainer takes the healthy form, and the fault injection
(:mod:`casebook.dflash.faults`) replaces one field at a time to prove that some check notices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from casebook.dflash import anchors, loss, masks
from casebook.dflash.attention import Backend
from casebook.dflash.batch import Batch
from casebook.dflash.loss import LossTerms
from casebook.dflash.masks import Blocks
from casebook.dflash.model import Drafter

Sampler = Callable[[Tensor, int, torch.Generator | None], tuple[Tensor, Tensor]]


def block_ids(input_ids: Tensor, blocks: Blocks, mask_token_id: int) -> Tensor:
    """int64 ``[b, N*B]``: the anchor's token, then the mask id. Padding blocks are all mask."""
    batch, count = blocks.anchors.shape
    ids = torch.full((batch, count, blocks.block_size), mask_token_id, device=input_ids.device)
    ids[..., 0] = input_ids.gather(1, blocks.anchors).masked_fill(~blocks.keep, mask_token_id)
    return ids.flatten(1)


def _as_it_is(terms: LossTerms) -> LossTerms:
    return terms


@dataclass(frozen=True)
class Form:
    """The training form of a drafter."""

    anchors: Sampler = anchors.sample_anchors
    see: masks.See = masks.may_see
    positions: Callable[[Blocks], Tensor] = Blocks.positions
    ids: Callable[[Tensor, Blocks, int], Tensor] = block_ids
    labels: Callable[[Tensor, Blocks], Tensor] = loss.labels
    mask: Callable[[Tensor, Blocks], Tensor] = loss.label_mask
    weights: Callable[[int, float | None], Tensor] = loss.decay
    reduce: Callable[[LossTerms], LossTerms] = _as_it_is

    def blocks(
        self, drafter: Drafter, batch: Batch, count: int, generator: torch.Generator | None
    ) -> Blocks:
        """The blocks of one step: ``count`` anchors a row at most, drawn anew."""
        at, keep = self.anchors(batch.loss_mask, count, generator)
        return Blocks(at, keep, drafter.config.block_size, batch.input_ids.shape[1], self.see)

    def outputs(
        self,
        drafter: Drafter,
        embedding: nn.Module | Callable[[Tensor], Tensor],
        batch: Batch,
        blocks: Blocks,
        backend: Backend = "split",
    ) -> Tensor:
        """The drafter's outputs for these blocks, ``[b, N*B, H]``."""
        ids = self.ids(batch.input_ids, blocks, drafter.config.mask_token_id)
        dtype = drafter.fc.weight.dtype
        embedded = embedding(ids).to(dtype)
        hidden = batch.hidden.to(dtype)
        return drafter(embedded, hidden, blocks, backend, self.positions(blocks))

    def terms(
        self,
        drafter: Drafter,
        embedding: nn.Module,
        head: Tensor,
        batch: Batch,
        blocks: Blocks,
        gamma: float | None,
        backend: Backend = "split",
    ) -> LossTerms:
        """The loss of these blocks, as sums to be added up before dividing."""
        out = self.outputs(drafter, embedding, batch, blocks, backend)
        return self.reduce(
            loss.loss_terms(
                out.to(head.dtype),
                head,
                self.labels(batch.input_ids, blocks),
                self.mask(batch.loss_mask, blocks),
                self.weights(drafter.config.block_size, gamma),
            )
        )
