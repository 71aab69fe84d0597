"""Attention that computes what the block mask leaves, and nothing else.

A query sees the context up to its anchor and its own block. So the scores are two products under one
softmax, S + B keys a query where the dense mask has S + N*B. It works in groups of whole blocks, each
against the context up to the group's last anchor, so that the scores of a long sample never stand in
memory at once.

The backward pass is written out: torch's own would keep several copies of the scores and take twice
the operations. With more than one group nothing of the scores is kept; they are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

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
    part = blocks if step >= blocks.anchors.shape[1] else blocks.part(first, first + step)
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
    """Inside, batch and key heads are one axis, h, and rows are ordered ``[h, N, r, B, ...]``.

    r query heads share a key head. In this order both shapes of a group's rows are views.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, planned: tuple[Group, ...]) -> Tensor:
        keys, values, size = k.flatten(0, 1), v.flatten(0, 1), planned[0].size
        (batch, heads, length, dim), h = q.shape, len(keys)
        ordered = q.reshape(h, -1, length // size, size, dim).transpose(1, 2)
        queries = torch.empty(ordered.shape, dtype=q.dtype, device=q.device)
        torch.mul(ordered, dim**-0.5, out=queries)
        parts, kept = [], None
        for group in planned:
            kept = _weights(group, _rows(group, queries), _keys(group, keys))
            parts.append(_product(_halves(group, kept), _keys(group, values)))
        out = _joined(parts, queries)
        ctx.save_for_backward(queries, keys, values, out, kept if len(parts) == 1 else None)
        ctx.groups, ctx.shapes = planned, (q.shape, k.shape)
        by_head = out.view(batch, -1, *out.shape[1:]).permute(0, 2, 4, 1, 3, 5)
        return by_head.reshape(batch, length, heads * dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        queries, keys, values, out, kept = ctx.saved_tensors
        (h, count, repeats, size, dim), (shape_q, shape_kv) = queries.shape, ctx.shapes
        by_head = grad.view(shape_q[0], count, size, -1, repeats, dim).permute(0, 3, 1, 4, 2, 5)
        grad = by_head.reshape(queries.shape)
        # A softmax's gradient takes off each row's mean; of attention that mean is grad . out.
        means = (grad * out).sum(-1, keepdim=True, dtype=torch.float32)
        parts, grad_k, grad_v = [], torch.zeros_like(keys), torch.zeros_like(values)
        for group in ctx.groups:
            rows, towards = _rows(group, queries), _rows(group, grad)
            near_keys = _keys(group, keys)
            weights = _weights(group, rows, near_keys) if kept is None else kept
            scores = _scores(towards, _keys(group, values)).float()
            scores.sub_(_rows(group, means).far).mul_(weights)
            by_score = _halves(group, scores.to(queries.dtype))
            parts.append(_product(by_score, near_keys))
            _add(group, grad_k, by_score, rows)
            _add(group, grad_v, _halves(group, weights), towards)
        grad_q = torch.empty(h, repeats, count, size, dim, dtype=grad.dtype, device=grad.device)
        torch.mul(_joined(parts, queries).transpose(1, 2), dim**-0.5, out=grad_q)
        return grad_q.view(shape_q), grad_k.view(shape_kv), grad_v.view(shape_kv), None


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


def _joined(parts: list[Tensor], queries: Tensor) -> Tensor:
    """The groups' ``[h, m, d]`` as ``[h, N, r, B, d]``."""
    return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)).view(queries.shape)


def _scores(rows: Pair, keys: Pair) -> Tensor:
    """Rows by the keys they may see: ``[h, m, reach + B]``."""
    (h, m, _), reach, size = rows.far.shape, keys.far.shape[1], keys.near.shape[1]
    scores = rows.far.new_empty(h, m, reach + size)
    scores[..., :reach].baddbmm_(rows.far, keys.far.mT, beta=0)  # in place: joining would copy
    scores[..., reach:] = torch.bmm(rows.near, keys.near.mT).view(h, m, size)
    return scores


def _product(weights: Pair, values: Pair) -> Tensor:
    """Weights times the values they belong to: ``[h, m, d]``."""
    near = torch.bmm(weights.near, values.near).view(*weights.far.shape[:2], -1)
    return near.baddbmm_(weights.far, values.far)


def _add(group: Group, grown: Tensor, weights: Pair, rows: Pair) -> None:
    """Add to ``grown`` ``[h, S + N*B, d]`` each weight times its row, at the key it belongs to."""
    grown[:, : group.reach].baddbmm_(weights.far.mT, rows.far)
    near = torch.bmm(weights.near.mT, rows.near)
    grown[:, group.keys] = near.view(len(grown), -1, near.shape[2])


def _weights(group: Group, rows: Pair, keys: Pair) -> Tensor:
    """The softmax over what is seen, ``[h, m, reach + B]``; 0 in rows of padding blocks."""
    scores = _scores(rows, keys).float()
    batch, _, count, *_, width = group.hidden.shape
    shape = (batch, len(scores) // batch, count, -1, group.size, width)
    scores.view(shape).masked_fill_(group.hidden, torch.finfo(torch.float32).min)
    weights = scores.softmax(-1)
    if group.alive is not None:
        weights.view(shape).mul_(group.alive)
    return weights.to(keys.far.dtype)
