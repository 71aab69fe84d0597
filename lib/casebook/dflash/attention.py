"""Attention of block queries over ``[context ; own block]``, by four equal backends.

``eager`` and ``sdpa`` take the dense mask, ``flex`` FlexAttention's. ``split``
(:mod:`casebook.dflash.split`) computes what the mask leaves and nothing else, so it is the default.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from casebook.dflash import masks, split
from casebook.dflash.errors import TrainingError
from casebook.dflash.masks import Blocks

Backend = Literal["split", "eager", "sdpa", "flex"]
Attend = Callable[[Tensor, Tensor, Tensor, int | None], Tensor]


def attend_packed(blocks: Blocks, backend: Backend) -> Attend:
    """A function of (queries ``[b, nh, N*B, d]``, keys, values ``[b, nkv, S + N*B, d]``, window).

    It gives ``[b, N*B, nh*d]``. Masks are made once per window and shared by the layers.
    """
    if backend not in get_args(Backend):
        raise TrainingError(
            f"There is no attention backend {backend!r}; known are {', '.join(get_args(Backend))}."
        )
    if backend == "split":
        planned = cache(lambda window, heads: split.plan(blocks, window, heads))
        return lambda q, k, v, window: split.attend(q, k, v, planned(window, q.shape[1]))

    @cache
    def mask(window: int | None) -> Any:
        return masks.flex(blocks, window) if backend == "flex" else masks.dense(blocks, window)

    run = {"eager": _eager, "sdpa": _sdpa, "flex": _flex}[backend]
    return lambda q, k, v, window: _side_by_side(run(q, k, v, mask(window)))


def _side_by_side(attended: Tensor) -> Tensor:
    """``[b, nh, n, d]`` to ``[b, n, nh*d]``."""
    return attended.transpose(1, 2).flatten(2)


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


def attend_plain(q: Tensor, k: Tensor, v: Tensor, window: int | None) -> Tensor:
    """Serving: one block behind its context; no mask on a full layer, window and order on a sliding one."""
    mask = None
    if window is not None:
        last = torch.arange(k.shape[2] - q.shape[2], k.shape[2], device=q.device)[:, None]
        key = torch.arange(k.shape[2], device=q.device)[None, :]
        mask = (key <= last) & (key > last - window)
    return _side_by_side(
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    )
