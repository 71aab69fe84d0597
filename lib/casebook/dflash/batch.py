"""Samples and batches: token ids, a mask of what is trained, and the target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from casebook.dflash.config import DrafterConfig
from casebook.dflash.errors import StoreError


@dataclass(frozen=True)
class Sample:
    """One tokenised completion in its context."""

    input_ids: Tensor
    """int64 ``[S]``: prompt and completion."""
    loss_mask: Tensor
    """uint8 ``[S]``: 1 on tokens the target generated, its end token included."""
    key: str = ""
    """Where it came from, for messages."""

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class Batch:
    """Samples padded on the right with zeros; padding is never an anchor, a label or context."""

    input_ids: Tensor
    """int64 ``[b, S]``."""
    loss_mask: Tensor
    """uint8 ``[b, S]``."""
    hidden: Tensor
    """``[b, S, K*H]``, in the target's dtype."""
    keys: tuple[str, ...] = ()


def collate_tokens(samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """Token ids and loss mask of several samples, ``[b, S]`` each."""
    ids = pad_sequence([s.input_ids for s in samples], batch_first=True)
    return ids, pad_sequence([s.loss_mask for s in samples], batch_first=True)


def collate(samples: Sequence[Sample], hidden: Sequence[Tensor]) -> Batch:
    """A batch of samples with their hidden states ``[S, K*H]``."""
    ids, mask = collate_tokens(samples)
    return Batch(
        ids, mask, pad_sequence(list(hidden), batch_first=True), tuple(s.key for s in samples)
    )


def refuse_bad_batch(batch: Batch, config: DrafterConfig) -> None:
    """Raise StoreError with the reason where a batch cannot train this drafter."""
    rows = ", ".join(batch.keys) or "unnamed"
    if (
        batch.hidden.shape[:2] != batch.input_ids.shape
        or batch.loss_mask.shape != batch.input_ids.shape
    ):
        raise StoreError(
            f"Batch ({rows}): {list(batch.hidden.shape[:2])} rows of hidden states for "
            f"{list(batch.input_ids.shape)} tokens; a prefix cache that skips rows does this."
        )
    if batch.hidden.shape[-1] != config.context_width:
        raise StoreError(
            f"Batch ({rows}): hidden states are {batch.hidden.shape[-1]} wide, "
            f"the drafter wants {config.taps} x {config.hidden_size} = {config.context_width}."
        )
    refuse_not_finite(batch.hidden, f"Batch ({rows})")
    low, top = (int(bound) for bound in batch.input_ids.aminmax())
    if top >= config.vocab_size or low < 0:
        wrong = low if low < 0 else top
        raise StoreError(
            f"Batch ({rows}): token id {wrong} is outside the vocabulary of {config.vocab_size}."
        )
    if bool(((batch.input_ids == config.mask_token_id) & (batch.loss_mask > 0)).any()):
        raise StoreError(
            f"Batch ({rows}): the mask id {config.mask_token_id} is in the text to be learnt; "
            "choose a row that no text uses."
        )


def refuse_not_finite(hidden: Tensor, where: str) -> None:
    """Raise StoreError where hidden states hold a NaN or an infinity."""
    # A NaN or an infinity stays in a sum. Finite ones may overflow it too, so then each is looked at.
    if not bool(hidden.sum(dtype=torch.float32).isfinite()) and not bool(
        hidden.float().isfinite().all()
    ):
        raise StoreError(f"{where}: the hidden states hold NaN or infinity; capture them again.")
