"""Which positions of a sample start a block in this step.

An anchor is a supervised token whose next token is supervised too, so that every block has at least
one label. Each step draws anew, uniformly and without replacement. A row's draw uses its own
random numbers, so it does not depend on its batch mates.
Source: SpecForge 0.2.0 ``_sample_anchor_positions`` (after PR #731, which gave back the last pair).
"""

from __future__ import annotations

import torch
from torch import Tensor

from casebook.dflash.errors import NoAnchorError


def valid_anchors(loss_mask: Tensor) -> Tensor:
    """bool ``[b, S-1]``: positions t with ``loss_mask`` set at t and t + 1 (``[b, S]``, 0 or 1)."""
    supervised = loss_mask > 0.5
    return supervised[:, :-1] & supervised[:, 1:]


def sample_anchors(
    loss_mask: Tensor, count: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Up to ``count`` anchors a row: positions int64 ``[b, N]``, ascending, and keep bool ``[b, N]``.

    N is the largest number any row has; shorter rows are filled with position 0 and keep False.
    Randomness comes from ``generator`` (a CPU one), so a resumed run draws what the other would.
    """
    valid = valid_anchors(loss_mask)
    counts = valid.sum(dim=1).tolist()
    width = min(count, max(counts)) if valid.numel() else 0
    if width == 0:
        raise NoAnchorError(
            "No sample of this batch has two consecutive supervised tokens; "
            "check the loss mask, or drop such samples before training."
        )
    # One draw of scores per row from a generator seeded for that row: independent of batch mates.
    scores = torch.stack([_row_scores(valid.shape[1], generator) for _ in range(len(valid))])
    scores = scores.to(valid.device).masked_fill(~valid, 2.0)
    drawn = scores.argsort(dim=1)[:, :width]
    if min(counts) >= width:
        return drawn.sort(dim=1).values, torch.ones_like(drawn, dtype=torch.bool)
    kept = torch.arange(width) < torch.tensor(counts)[:, None]
    anchors = drawn.masked_fill(~kept.to(drawn.device), valid.shape[1]).sort(dim=1).values
    keep = anchors < valid.shape[1]
    return anchors.masked_fill(~keep, 0), keep


def _row_scores(length: int, generator: torch.Generator | None) -> Tensor:
    """Uniform scores in [0, 1) whose first entries do not depend on ``length``."""
    seed = int(torch.randint(2**62, (1,), generator=generator))
    return torch.rand(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
