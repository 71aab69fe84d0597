"""Faults of the training form: what a slot sees, where it stands, what it is trained on."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from casebook.dflash import form, loss, masks
from casebook.dflash.anchors import valid_anchors
from casebook.dflash.errors import NoAnchorError
from casebook.dflash.faults_base import SPECFORGE, fault
from casebook.dflash.loss import LossTerms
from casebook.dflash.masks import Blocks


def _see_anchor(
    a: Tensor, s: Tensor, k: Tensor, same: Tensor, context: int, window: int | None
) -> Tensor:
    return masks.may_see(a, s, k, same, context, window) | ((k < context) & (k == a))


def _see_causally(
    a: Tensor, s: Tensor, k: Tensor, same: Tensor, context: int, window: int | None
) -> Tensor:
    seen = masks.may_see(a, s, k, same, context, window)
    return seen & ((k < context) | (k - context <= s))


def _see_both_ways(
    a: Tensor, s: Tensor, k: Tensor, same: Tensor, context: int, window: int | None
) -> Tensor:
    return masks.may_see(a, s, k, same, context, window) | ((k >= context) & same)


def _see_whole_text(
    a: Tensor, s: Tensor, k: Tensor, same: Tensor, context: int, window: int | None
) -> Tensor:
    later = (k < context) & (
        k > a + 4
    )  # as blocks that share a row would look at each other's text
    return masks.may_see(a, s, k, same, context, window) | later


def _shifted_labels(input_ids: Tensor, blocks: Blocks) -> Tensor:
    at = (blocks.positions() + 1).clamp(max=input_ids.shape[1] - 1)
    return input_ids.gather(1, at).unflatten(1, (-1, blocks.block_size))


def _positions_off(blocks: Blocks) -> Tensor:
    return blocks.positions() + 1


def _labels_in_block(input_ids: Tensor, blocks: Blocks, mask_token_id: int) -> Tensor:
    ids = form.block_ids(input_ids, blocks, mask_token_id)
    clean = loss.labels(input_ids, blocks)
    return torch.cat((ids.view_as(clean)[..., :2], clean[..., 2:]), -1).flatten(1)


def _neighbour_in_block(input_ids: Tensor, blocks: Blocks, mask_token_id: int) -> Tensor:
    ids = form.block_ids(input_ids, blocks, mask_token_id).view(
        len(input_ids), -1, blocks.block_size
    )
    ids = ids.clone()
    ids[:, :, -1] = ids[:, :, 0].roll(1, 1)  # the block before: wrong stride when packing
    return ids.flatten(1)


def _old_anchors(
    mask: Tensor, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """As before SpecForge#731: one anchor fewer than there are, and batch mates share the draw."""
    valid = valid_anchors(mask)
    counts = valid.sum(1)
    width = min(count, int(counts.max()) - 1)
    if width < 1:
        raise NoAnchorError("No anchor.")
    scores = torch.rand(valid.shape, generator=generator).masked_fill(~valid, 2.0)
    keep = torch.arange(width)[None] < (counts - 1)[:, None]
    return scores.argsort(1)[:, :width].masked_fill(~keep, 0).sort(1).values, keep


def _anchor_scored(loss_mask: Tensor, blocks: Blocks) -> Tensor:
    wanted = loss.label_mask(loss_mask, blocks)
    wanted[..., 0] = blocks.keep.float()
    return wanted


def _no_decay(block_size: int, gamma: float | None) -> Tensor:  # noqa: ARG001
    return torch.ones(block_size)


def _mean_each(terms: LossTerms) -> LossTerms:
    one = torch.ones_like(terms.denominator)
    return replace(terms, numerator=terms.numerator / terms.denominator, denominator=one)


FAULTS = (
    fault("labels shifted by one", f"{SPECFORGE}/issues/455", labels=_shifted_labels),
    fault("context includes the anchor's hidden state", f"{SPECFORGE}/pull/473", see=_see_anchor),
    fault("context includes text after the block", "this project's own runs", see=_see_whole_text),
    fault("in-block attention causal in training", f"{SPECFORGE}/pull/427", see=_see_causally),
    fault(
        "sliding layers trained both ways",
        "https://github.com/z-lab/dflash/issues/126",
        see=_see_both_ways,
    ),
    fault("block positions off by one", f"{SPECFORGE}/issues/533", positions=_positions_off),
    fault("labels given to the block", "this project's own runs", ids=_labels_in_block),
    fault(
        "a block sees its neighbour's anchor", "this project's own runs", ids=_neighbour_in_block
    ),
    fault("old anchor rule", f"{SPECFORGE}/pull/731", anchors=_old_anchors),
    fault("the anchor slot is scored", f"{SPECFORGE}/pull/463", mask=_anchor_scored),
    fault("decay is ignored", f"{SPECFORGE}/pull/463", weights=_no_decay),
    fault("mean per micro-batch", f"{SPECFORGE}/pull/731", reduce=_mean_each),
)
