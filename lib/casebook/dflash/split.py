"""Attention that computes what the block mask leaves, and nothing else.

A query sees the context up to its anchor and its own block. So the scores are two products under one
softmax, S + B keys a query where the dense mask has S + N*B. It works in groups of whole blocks, each
against the context up to the group's last anchor, so that the scores of a long sample never stand in
memory at once.

The backward pass is written out, so that rows lie in the one order in which both products take views,
and scores go straight to their place. With one group its weights are kept, in the queries' dtype; with
more nothing of that size is, and they are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from casebook.dflash import masks
from casebook.dflash.masks import Blocks

SCORE_BYTES = 64 << 20
"""How much one group's float32 scores may take before more groups are made."""


@dataclass(frozen=True)
class Group:
    """n blocks, and what their queries must not see."""

    size: int
    """B."""
    blocks: slice
    """Which of the N."""
    keys: slice
    """Where their own slots stand among the S + N*B keys."""
    reach: int
    """How many context keys any of them may see: up to the last anchor."""
    hidden: Tensor
    """bool ``[b, 1, n, 1, B or 1, reach + B]``: context keys, then the query's own block."""
    alive: Tensor | None
    """bool ``[b, 1, n, 1, 1, 1]``, False for padding blocks; None where there is none."""


def plan(blocks: Blocks, window: int | None, heads: int) -> tuple[Group, ...]:
    """Cut the blocks into groups of at most SCORE_BYTES of scores, for one window."""
    rows, count = blocks.anchors.shape
    size, context = blocks.block_size, blocks.context
    step = max(1, SCORE_BYTES // (4 * rows * heads * size * (context + size)))
    whole = bool(blocks.keep.all())
    return tuple(_group(blocks, i, step, window, whole) for i in range(0, count, step))


def _group(blocks: Blocks, first: int, step: int, window: int | None, whole: bool) -> Group:
    size = blocks.block_size
    part = blocks.part(first, first + step)
    count = part.anchors.shape[1]
    # ``see`` may be a faulty rule that looks past the anchor, so the context is cut only for ours.
    reach = int(part.anchors.max()) if part.see is masks.may_see else part.context
    start = blocks.context + first * size
    return Group(
        size,
        slice(first, first + count),
        slice(start, start + count * size),
        reach,
        ~masks.own(part, window, reach)[:, None, :, None],
        None if whole else part.keep[:, None, :, None, None, None],
    )


def attend(q: Tensor, k: Tensor, v: Tensor, planned: tuple[Group, ...]) -> Tensor:
    """Queries ``[b, nh, N*B, d]`` over keys and values ``[b, nkv, S + N*B, d]``, to ``[b, N*B, nh*d]``.

    Rows of padding blocks come out as zero.
    """
    device = q.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    return _Split.apply(q, k, v, planned)


class Pair(NamedTuple):
    """Rows, keys or weights of one group in the two shapes its products want; m = n*r*B rows."""

    far: Tensor
    """Towards the context: rows ``[h, m, d]``, keys ``[h, reach, d]``, weights ``[h, m, reach]``."""
    near: Tensor
    """Towards the own block: ``[h*n, r*B, d]``, ``[h*n, B, d]``, ``[h*n, r*B, B]``."""


class _Split(torch.autograd.Function):
    """Inside, batch and key heads are one axis, h, and rows are ordered ``[h, N, r, B, d]``.

    r query heads share a key head. In this order both shapes of a group's rows are views.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, planned: tuple[Group, ...]) -> Tensor:
        (batch, _, length, dim), size = q.shape, planned[0].size
        keys, values = k.flatten(0, 1), v.flatten(0, 1)
        by_head = q.reshape(len(keys), -1, length // size, size, dim)
        queries = by_head.transpose(1, 2).contiguous()
        parts, weights = [], None
        for group in planned:
            weights = None  # the last group's go before the next one's are made
            weights = _weights(group, _rows(group, queries), _keys(group, keys))
            parts.append(_product(_halves(group, weights), _keys(group, values)))
        if len(planned) > 1:
            weights = None
        ctx.save_for_backward(queries, keys, values, weights)
        ctx.groups, ctx.shapes = planned, (q.shape, k.shape)
        out = _joined(parts).view(batch, -1, *queries.shape[1:])  # [b, g, N, r, B, d]
        return out.permute(0, 2, 4, 1, 3, 5).reshape(batch, length, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        if torch.is_autocast_enabled(grad.device.type):  # the dtypes are those of the forward pass
            with torch.autocast(grad.device.type, enabled=False):
                return _Split.backward(ctx, grad)
        queries, keys, values, kept = ctx.saved_tensors
        (_, count, repeats, size, dim), (shape_q, shape_kv) = queries.shape, ctx.shapes
        by_slot = grad.view(shape_q[0], count, size, -1, repeats, dim)
        grad = by_slot.permute(0, 3, 1, 4, 2, 5).reshape(queries.shape)
        parts, grad_k, grad_v = [], torch.zeros_like(keys), torch.zeros_like(values)
        for group in ctx.groups:
            rows, of_keys = _rows(group, queries), _keys(group, keys)
            weights = _weights(group, rows, of_keys) if kept is None else kept
            towards = _rows(group, grad)
            _put(group, grad_v, _halves(group, weights), towards)
            scores = _scores(towards, _keys(group, values), dim**-0.5)
            by_score = _halves(group, _softmax_gradient(weights, scores))
            parts.append(_product(by_score, of_keys))
            _put(group, grad_k, by_score, rows)
            del weights, scores, by_score  # before the next group's are made
        grad_q = _joined(parts).view(queries.shape).transpose(1, 2).reshape(shape_q)
        return grad_q, grad_k.view(shape_kv), grad_v.view(shape_kv), None


def _rows(group: Group, rows: Tensor) -> Pair:
    """The group's of ``[h, N, r, B, d]``."""
    h, _, repeats, size, dim = rows.shape
    own = rows[:, group.blocks]
    return Pair(own.reshape(h, -1, dim), own.reshape(-1, repeats * size, dim))


def _keys(group: Group, keys: Tensor) -> Pair:
    """The group's of ``[h, S + N*B, d]``."""
    return Pair(keys[:, : group.reach], keys[:, group.keys].reshape(-1, group.size, keys.shape[2]))


def _halves(group: Group, weights: Tensor) -> Pair:
    """``[h, m, reach + B]`` taken apart."""
    far, near = weights.split((group.reach, group.size), -1)
    blocks = len(weights) * (group.blocks.stop - group.blocks.start)
    return Pair(far, near.reshape(blocks, -1, group.size))


def _joined(parts: list[Tensor]) -> Tensor:
    """The groups' ``[h, m, d]``, one behind the other."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _scores(rows: Pair, keys: Pair, scale: float) -> Tensor:
    """``scale`` times rows by the keys they may see: ``[h, m, reach + B]``."""
    (h, m, _), reach, size = rows.far.shape, keys.far.shape[1], keys.near.shape[1]
    scores = rows.far.new_empty(h, m, reach + size)
    far, near = scores.split((reach, size), -1)  # in place, for joining would copy
    far.baddbmm_(rows.far, keys.far.mT, beta=0, alpha=scale)
    torch.mul(torch.bmm(rows.near, keys.near.mT).view(h, m, size), scale, out=near)
    return scores


def _product(weights: Pair, values: Pair) -> Tensor:
    """Weights times the values they belong to: ``[h, m, d]``."""
    near = torch.bmm(weights.near, values.near).view(*weights.far.shape[:2], -1)
    return near.baddbmm_(weights.far, values.far)


def _put(group: Group, grown: Tensor, weights: Pair, rows: Pair) -> None:
    """Each weight times its row, to the key it belongs to in ``grown`` ``[h, S + N*B, d]``.

    Context keys are of all groups, so there it adds; a block's own are of one.
    """
    grown[:, : group.reach].baddbmm_(weights.far.mT, rows.far)
    near = torch.bmm(weights.near.mT, rows.near)
    grown[:, group.keys] = near.view(len(grown), -1, near.shape[2])


def _softmax_gradient(weights: Tensor, grad: Tensor) -> Tensor:
    """From the gradient of the weights that of the scores, in the weights' dtype; takes ``grad``.

    A softmax takes off each row's mean. Flash attention finds that mean as grad . out; in bfloat16
    the rounding of out would double the error, so it is summed up here, in float32.
    """
    grad = grad.float().mul_(weights)
    return grad.addcmul_(weights.float(), grad.sum(-1, keepdim=True), value=-1).to(weights.dtype)


def _weights(group: Group, rows: Pair, keys: Pair) -> Tensor:
    """The softmax over what is seen, ``[h, m, reach + B]``; 0 in rows of padding blocks."""
    scores = _scores(rows, keys, rows.far.shape[2] ** -0.5).float()
    batch, _, count, *_, width = group.hidden.shape
    shape = (batch, len(scores) // batch, count, -1, group.size, width)
    scores.view(shape).masked_fill_(group.hidden, torch.finfo(torch.float32).min)
    weights = scores.softmax(-1)
    if group.alive is not None:
        weights.view(shape).mul_(group.alive)
    return weights.to(keys.far.dtype)
