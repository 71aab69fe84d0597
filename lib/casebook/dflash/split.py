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
from typing import Any

import torch
from torch import Tensor

from casebook.dflash import masks
from casebook.dflash.masks import Blocks

SCORE_BYTES = 64 << 20
"""How much one group's float32 scores may take before more groups are made."""


@dataclass(frozen=True)
class Group:
    """Some blocks, and what their queries must not see."""

    rows: slice
    """Their m = n*B queries among the N*B."""
    reach: int
    """How many context keys any of them may see: up to the last anchor."""
    hidden: Tensor
    """bool ``[b, 1, 1, m, reach + B]``: context keys, then the query's own block."""
    alive: Tensor | None
    """bool ``[b, 1, 1, m, 1]``, False for padding blocks; None where there is none."""


@dataclass(frozen=True)
class Plan:
    """The groups of one batch for one window, shared by its layers."""

    size: int
    """B."""
    context: int
    """S."""
    groups: tuple[Group, ...]


def plan(blocks: Blocks, window: int | None, heads: int) -> Plan:
    """Cut the blocks into groups of at most SCORE_BYTES of scores."""
    rows, count = blocks.anchors.shape
    size, context = blocks.block_size, blocks.context
    step = max(1, SCORE_BYTES // (4 * rows * heads * size * (context + size)))
    whole = bool(blocks.keep.all())
    groups = [
        _group(blocks if step >= count else blocks.part(i, i + step), i * size, window, whole)
        for i in range(0, count, step)
    ]
    return Plan(size, context, tuple(groups))


def _group(blocks: Blocks, first_row: int, window: int | None, whole: bool) -> Group:
    # ``see`` may be a faulty rule that looks past the anchor, so the context is cut only for ours.
    reach = int(blocks.anchors.max()) if blocks.see is masks.may_see else blocks.context
    hidden = ~masks.own(blocks, window, reach)[:, None, None]
    alive = None
    if not whole:
        alive = blocks.keep.repeat_interleave(blocks.block_size, 1)[:, None, None, :, None]
    return Group(slice(first_row, first_row + blocks.queries), reach, hidden, alive)


def attend(q: Tensor, k: Tensor, v: Tensor, planned: Plan) -> Tensor:
    """Queries ``[b, nh, N*B, d]`` over keys and values ``[b, nkv, S + N*B, d]``, to the queries' shape.

    Rows of padding blocks come out as zero.
    """
    device = q.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    return _Split.apply(q, k, v, planned)


class _Split(torch.autograd.Function):
    """Batch and key heads are one axis in here, h = b*nkv: ``bmm`` costs least on three axes."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, planned: Plan) -> Tensor:
        keys, values = k.flatten(0, 1), v.flatten(0, 1)
        scaled = (q * q.shape[-1] ** -0.5).contiguous()
        queries = scaled.view(len(keys), -1, *q.shape[2:])  # [h, r, N*B, d]
        out = torch.empty_like(queries)
        kept = None
        for group in planned.groups:
            fold = _Fold(planned, group, queries.shape)
            weights = _weights(fold, queries, keys)
            out[:, :, group.rows] = fold.back(_product(fold, weights, values))
            kept = weights if len(planned.groups) == 1 else None
        ctx.save_for_backward(queries, keys, values, out, kept)
        ctx.planned, ctx.shapes = planned, (q.shape, k.shape)
        return out.view(q.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        queries, keys, values, out, kept = ctx.saved_tensors
        grad = grad.reshape(queries.shape)
        grad_q, grad_k, grad_v = (torch.zeros_like(x) for x in (queries, keys, values))
        # A softmax's gradient takes off each row's mean; of attention that mean is grad . out.
        means = (grad * out).sum(-1, keepdim=True, dtype=torch.float32)
        for group in ctx.planned.groups:
            fold = _Fold(ctx.planned, group, queries.shape)
            weights = _weights(fold, queries, keys) if kept is None else kept
            towards = fold.rows(grad)
            by_score = _scores(fold, towards, values).float()
            by_score = by_score.sub_(fold.rows(means)).mul_(weights).to(queries.dtype)
            grad_q[:, :, group.rows] = fold.back(_product(fold, by_score, keys))
            fold.add(grad_k, by_score, fold.rows(queries))
            fold.add(grad_v, weights, towards)
        shape_q, shape_kv = ctx.shapes
        grad_q.mul_(grad.shape[-1] ** -0.5)
        return grad_q.view(shape_q), grad_k.view(shape_kv), grad_v.view(shape_kv), None


class _Fold:
    """One group's rows in the two shapes its products want.

    ``[h, r*m, c]`` towards the context, the r query heads of a key head below each other;
    ``[h*n, r*B, c]`` towards the own block.
    """

    def __init__(self, planned: Plan, group: Group, queries: torch.Size) -> None:
        self.group, self.size = group, planned.size
        self.heads, self.repeats = queries[:2]
        self.count = group.rows.stop - group.rows.start  # m
        self.own = slice(planned.context + group.rows.start, planned.context + group.rows.stop)

    def rows(self, x: Tensor) -> Tensor:
        """The group's rows of ``[h, r, N*B, c]`` as ``[h, r*m, c]``."""
        return x[:, :, self.group.rows].flatten(1, 2)

    def back(self, x: Tensor) -> Tensor:
        """``[h, r*m, c]`` as ``[h, r, m, c]``."""
        return x.view(self.heads, self.repeats, self.count, -1)

    def into(self, x: Tensor) -> Tensor:
        """``[h, r*m, c]`` as ``[h*n, r*B, c]``."""
        blocks = x.unflatten(1, (self.repeats, -1, self.size)).transpose(1, 2)
        return blocks.reshape(-1, self.repeats * self.size, x.shape[-1])

    def out_of(self, x: Tensor) -> Tensor:
        """The way back of :meth:`into`."""
        blocks = x.view(self.heads, -1, self.repeats, self.size, x.shape[-1]).transpose(1, 2)
        return blocks.reshape(self.heads, -1, x.shape[-1])

    def near(self, x: Tensor) -> Tensor:
        """Of keys or values ``[h, S + N*B, d]`` those of the blocks, ``[h*n, B, d]``."""
        return x[:, self.own].reshape(-1, self.size, x.shape[-1])

    def add(self, grown: Tensor, left: Tensor, right: Tensor) -> None:
        """Add ``left``'s columns times ``right``'s rows to the keys they stand for in ``grown``."""
        far, near = left.split((self.group.reach, self.size), -1)
        grown[:, : self.group.reach].baddbmm_(far.mT, right)
        own = torch.bmm(self.into(near).mT, self.into(right))
        grown[:, self.own] = own.view(self.heads, -1, own.shape[-1])


def _scores(fold: _Fold, left: Tensor, right: Tensor) -> Tensor:
    """``[h, r*m, reach + B]``: rows ``left`` by those of the context, then of their own block."""
    far = torch.bmm(left, right[:, : fold.group.reach].mT)
    near = torch.bmm(fold.into(left), fold.near(right).mT)
    return torch.cat((far, fold.out_of(near)), -1)


def _product(fold: _Fold, left: Tensor, right: Tensor) -> Tensor:
    """``[h, r*m, d]``: what :func:`_scores` gave, times the same rows."""
    far, near = left.split((fold.group.reach, fold.size), -1)
    own = fold.out_of(torch.bmm(fold.into(near), fold.near(right)))
    return own.baddbmm_(far, right[:, : fold.group.reach])


def _weights(fold: _Fold, queries: Tensor, keys: Tensor) -> Tensor:
    """The softmax over what is seen, in the keys' dtype; 0 in rows of padding blocks."""
    group = fold.group
    scores = _scores(fold, fold.rows(queries), keys).float()
    shape = (len(group.hidden), -1, fold.repeats, *group.hidden.shape[3:])
    scores.view(shape).masked_fill_(group.hidden, torch.finfo(torch.float32).min)
    weights = scores.softmax(-1)
    if group.alive is not None:
        weights.view(shape).mul_(group.alive)
    return weights.to(keys.dtype)
