"""Attention of block queries over ``[context ; own block]``, by four equal backends.

``eager`` and ``sdpa`` take the dense mask, ``flex`` FlexAttention's. ``split`` computes what the
mask leaves and nothing else: scores against the context up to the last anchor, and scores inside
each block, under one softmax. With N blocks of B slots the dense forms look at S + N*B keys a
query, ``split`` at S + B, so it is the default; it works in groups of blocks so that the scores of
a long sample do not stand in memory at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.utils.checkpoint import checkpoint

from casebook.dflash import masks
from casebook.dflash.errors import TrainingError
from casebook.dflash.masks import Blocks

Backend = Literal["split", "eager", "sdpa", "flex"]
KeysValues = tuple[Tensor, Tensor]
Attend = Callable[[Tensor, KeysValues, KeysValues, int | None], Tensor]
SCORE_BYTES = 64 << 20
"""How much one group's score matrix may take in ``split`` before more groups are made."""


def attend_packed(blocks: Blocks, backend: Backend) -> Attend:
    """A function of (queries ``[b, nh, N*B, d]``, context k/v, block k/v, window) for these blocks.

    Masks are made once per window and shared by the layers.
    """
    if backend not in get_args(Backend):
        raise TrainingError(
            f"There is no attention backend {backend!r}; known are {', '.join(get_args(Backend))}."
        )
    if backend == "split":
        kept: dict[tuple[int, int, int | None], Part] = {}
        whole = bool(blocks.keep.all())
        return lambda q, context, own, window: _split(blocks, kept, whole, q, context, own, window)

    @cache
    def mask(window: int | None) -> Any:
        return masks.flex(blocks, window) if backend == "flex" else masks.dense(blocks, window)

    run = {"eager": _eager, "sdpa": _sdpa, "flex": _flex}[backend]
    return lambda q, context, own, window: run(q, *_joined(context, own), mask(window))


def _joined(context: KeysValues, own: KeysValues) -> KeysValues:
    return torch.cat((context[0], own[0]), 2), torch.cat((context[1], own[1]), 2)


def _grouped(q: Tensor, groups: int) -> Tensor:
    """``[b, nh, n, d]`` to ``[b, nkv, nh/nkv, n, d]``: query heads beside their key head."""
    return q.unflatten(1, (groups, -1))


def _eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    scores = torch.einsum("bgrqd,bgkd->bgrqk", _grouped(q, k.shape[1]), k) * q.shape[-1] ** -0.5
    scores = scores.float() + masks.additive(mask, torch.float32)[:, :, None]
    weights = scores.softmax(-1).to(q.dtype)
    # Rows that see nothing would average what they must not see.
    weights = weights * mask.any(-1, keepdim=True)[:, :, None]
    return torch.einsum("bgrqk,bgkd->bgrqd", weights, v).flatten(1, 2)


def _sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.masked_fill(~mask.any(-1, keepdim=True), 0.0)


def _flex(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    attend: Any = _compiled_flex() if q.is_cuda else flex_attention
    with warnings.catch_warnings():
        # On a CPU the plain form is wanted: it is here to be compared, not to be fast.
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        return attend(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


@lru_cache(maxsize=1)
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


Part = tuple[Tensor, Tensor, Tensor | None]
"""Of a group of blocks: what is hidden of the context, of the block, and the rows to be zeroed."""


def _split(
    blocks: Blocks,
    kept: dict[tuple[int, int, int | None], Part],
    whole: bool,
    q: Tensor,
    context: KeysValues,
    own: KeysValues,
    window: int | None,
) -> Tensor:
    """Groups of whole blocks, each against the context up to the group's last anchor.

    ``kept`` holds the groups' masks from one layer to the next; ``whole`` tells that no block is
    padding, so that no row has to be zeroed.
    """
    count, size = blocks.anchors.shape[1], blocks.block_size
    row_bytes = 4 * q.shape[0] * q.shape[1] * size * (blocks.context + size)
    step = max(1, min(count, SCORE_BYTES // max(row_bytes, 1)))
    parts = []
    for start in range(0, count, step):
        part = kept.get((start, step, window))
        if part is None:
            part = kept[start, step, window] = _masks(
                blocks.part(start, start + step), window, whole
            )
        reach, rows = part[0].shape[-1], slice(start * size, (start + step) * size)
        tensors = (
            q[:, :, rows],
            *(x[:, :, :reach] for x in context),
            *(x[:, :, rows] for x in own),
        )
        if step < count and torch.is_grad_enabled():
            parts.append(checkpoint(_split_part, part, *tensors, use_reentrant=False))
        else:
            parts.append(_split_part(part, *tensors))
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _masks(blocks: Blocks, window: int | None, whole: bool) -> Part:
    # ``see`` may be a faulty rule that looks past the anchor, so the context is cut only for ours.
    reach = int(blocks.anchors.max()) if blocks.see is masks.may_see else blocks.context
    far = ~masks.context_mask(blocks, window)[..., :reach]
    near = ~masks.block_mask(blocks, window)
    rows = None if whole else blocks.keep.repeat_interleave(blocks.block_size, 1)
    return far[:, :, None], near[:, None, None], rows


def _split_part(part: Part, q: Tensor, kc: Tensor, vc: Tensor, kb: Tensor, vb: Tensor) -> Tensor:
    (far, near, rows), groups = part, kc.shape[1]
    reach, size = far.shape[-1], near.shape[-1]
    grouped = _grouped(q * q.shape[-1] ** -0.5, groups)
    batch, _, repeats, count, dim = grouped.shape
    # Query heads of one key head are rows of one product.
    to_context = (grouped.flatten(2, 3) @ kc.transpose(2, 3)).unflatten(2, (repeats, count))
    folded = grouped.unflatten(3, (-1, size)).transpose(2, 3)  # [b, g, n, r, B, d]
    keys, values = (x.unflatten(2, (-1, size)) for x in (kb, vb))  # [b, g, n, B, d]
    to_block = (folded.flatten(3, 4) @ keys.transpose(3, 4)).unflatten(3, (repeats, size))
    to_block = to_block.transpose(2, 3)  # [b, g, r, n, B, B]
    lowest = torch.finfo(torch.float32).min
    scores = torch.cat(
        (
            to_context.float().masked_fill(far, lowest),
            to_block.float().masked_fill(near, lowest).flatten(3, 4),
        ),
        -1,
    )
    w_context, w_block = scores.softmax(-1).to(q.dtype).split((reach, size), -1)
    out = (w_context.flatten(2, 3) @ vc).unflatten(2, (repeats, count))
    w_block = w_block.unflatten(3, (-1, size)).transpose(2, 3).flatten(3, 4)  # [b, g, n, r*B, B]
    inside = (w_block @ values).unflatten(3, (repeats, size)).transpose(2, 3)
    out = (out + inside.reshape(batch, groups, repeats, count, dim)).flatten(1, 2)
    # Rows of padding blocks would average what they must not see.
    return out if rows is None else out * rows[:, None, :, None]


def attend_plain(q: Tensor, context: KeysValues, own: KeysValues, window: int | None) -> Tensor:
    """Serving: one block behind its context; no mask on a full layer, window and order on a sliding one."""
    k, v = _joined(context, own)
    mask = None
    if window is not None:
        last = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device)[:, None]
        key = torch.arange(k.shape[2], device=q.device)[None, :]
        mask = (key <= last) & (key > last - window)
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]
    )
