"""Who may look at whom when many blocks are trained in one pass.

A training pass packs N blocks of B slots behind a context of S tokens. Keys are ``[context S | N*B
slots]``, queries the N*B slots. A slot sees the context strictly before its block's anchor, for at
inference the anchor's own hidden state is not there yet, and its own block. On a sliding layer it
sees the last W positions only, itself included, and its block causally.

:func:`may_see` is the rule, once; the dense masks and FlexAttention's are both made from it.
Sources: SpecForge 0.2.0 ``create_dflash_sdpa_mask``; SGLang >= 0.5.15.post1 for sliding layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

See = Callable[[Tensor, Tensor, Tensor, Tensor, int, int | None], Tensor]


def may_see(
    anchor: Tensor, slot: Tensor, key: Tensor, same_block: Tensor, context: int, window: int | None
) -> Tensor:
    """Whether the query in ``slot`` of the block at ``anchor`` sees ``key``; all broadcast.

    ``key`` counts 0..S-1 for context tokens; for slots it is S + the key's own slot number (0..B-1)
    and ``same_block`` tells whether that slot is of the query's block. ``context`` is S; ``window``
    is W in tokens, None for full attention.
    """
    in_context = (key < context) & (key < anchor)
    in_block = (key >= context) & same_block
    if window is not None:
        in_context = in_context & (key >= anchor + slot - (window - 1))
        own = key - context
        in_block = in_block & (own <= slot) & (own > slot - window)
    return in_context | in_block


@dataclass(frozen=True)
class Blocks:
    """The blocks of one batch. Padding blocks have ``keep`` False and see nothing."""

    anchors: Tensor
    """int64 ``[b, N]``: the position of each block's first token."""
    keep: Tensor
    """bool ``[b, N]``: False for a block that only fills the row."""
    block_size: int
    context: int
    """S, the tokens of context per row, padding included."""
    see: See = may_see
    """The rule; only a fault injection gives another."""

    @property
    def queries(self) -> int:
        """N * B, the length of the packed queries."""
        return self.anchors.shape[1] * self.block_size

    def positions(self) -> Tensor:
        """Absolute positions of the slots, int64 ``[b, N*B]``: slot j of anchor a stands at a + j.

        Made once, for a step asks four times; not to be changed in place.
        """
        return self._positions

    @cached_property
    def _positions(self) -> Tensor:
        offsets = torch.arange(self.block_size, device=self.anchors.device)
        return (self.anchors[..., None] + offsets).flatten(1)

    def part(self, start: int, stop: int) -> Blocks:
        """The blocks ``start`` to ``stop`` of each row."""
        return replace(self, anchors=self.anchors[:, start:stop], keep=self.keep[:, start:stop])


def dense(blocks: Blocks, window: int | None) -> Tensor:
    """The whole mask, bool ``[b, 1, N*B, S + N*B]``, True where a query sees a key."""
    device, size, context = blocks.anchors.device, blocks.block_size, blocks.context
    q = torch.arange(blocks.queries, device=device)[:, None]
    k = torch.arange(context + blocks.queries, device=device)[None, :]
    key_block = (k - context).div(size, rounding_mode="floor")
    key = torch.where(k < context, k, context + (k - context) % size)
    anchor = blocks.anchors.repeat_interleave(size, dim=1)[:, :, None]
    seen = blocks.see(anchor, q % size, key, key_block == q // size, context, window)
    keep = blocks.keep.repeat_interleave(size, dim=1)[:, :, None]
    return (seen & keep)[:, None]


def own(blocks: Blocks, window: int | None, reach: int) -> Tensor:
    """What is seen of the first ``reach`` context tokens and the own block: ``[b, N, B, reach + B]``.

    The columns of :func:`dense` that can be True at all, where no anchor is beyond ``reach``. The
    third axis has length 1 where every slot of a block sees the same.
    """
    device, context = blocks.anchors.device, blocks.context
    slot = torch.arange(blocks.block_size, device=device)
    key = torch.cat((torch.arange(reach, device=device), slot + context))
    anchor = blocks.anchors[..., None, None]
    seen = blocks.see(anchor, slot[:, None], key, key >= context, context, window)
    return seen & blocks.keep[..., None, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where ``mask`` is True, the lowest finite number elsewhere.

    A bool mask *added* to scores masks nothing (speculators#686), and minus infinity makes rows
    that see nothing NaN; such rows must be zeroed after the softmax.
    """
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


class _Modifier(Protocol):
    def __call__(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor: ...


def flex(blocks: Blocks, window: int | None) -> Any:
    """The same rule as a FlexAttention ``BlockMask``.

    Flex rounds query and key lengths up to its tile, so indices beyond the last block are clamped
    before they index (SpecForge#511: a device assert otherwise) and masked afterwards.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    batch, count = blocks.anchors.shape
    size, context = blocks.block_size, blocks.context

    def modifier(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:  # noqa: ARG001
        query_block = q // size
        safe = query_block.clamp(max=count - 1)
        is_context = k < context
        key_block = (k - context) // size
        key = torch.where(is_context, k, context + (k - context) % size)
        seen = blocks.see(
            blocks.anchors[b, safe], q % size, key, key_block == query_block, context, window
        )
        return seen & blocks.keep[b, safe] & (query_block < count)

    rule: _Modifier = modifier
    return create_block_mask(
        rule, batch, None, blocks.queries, context + blocks.queries, device=blocks.anchors.device
    )
