"""Batches for a run: which samples belong to which step, and where their hidden states come from.

The order is a permutation per epoch made from the seed, so step n means the same samples whoever
asks and however many processes share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from casebook.dflash.batch import Batch, Sample, collate_tokens
from casebook.dflash.errors import StoreError
from casebook.dflash.target import HiddenSource


@dataclass(frozen=True)
class Order:
    """``batch`` samples a micro-batch, ``accumulate`` micro-batches a rank and step, ``size`` ranks."""

    samples: int
    batch: int = 1
    accumulate: int = 1
    size: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise StoreError("There is no sample to train on.")

    def indices(self, step: int, rank: int) -> list[list[int]]:
        """The sample numbers of each micro-batch of ``rank`` in step 0, 1, ...; ranks take turns."""
        micros = range(step * self.accumulate, (step + 1) * self.accumulate)
        return [self._micro(m * self.size + rank) for m in micros]

    def _micro(self, number: int) -> list[int]:
        found = []
        for position in range(number * self.batch, (number + 1) * self.batch):
            epoch, at = divmod(position, self.samples)
            found.append(int(_permutation(self.samples, self.seed * 1_000_003 + epoch)[at]))
        return found


@lru_cache(maxsize=2)  # a micro-batch may stand astride two epochs
def _permutation(samples: int, seed: int) -> torch.Tensor:
    return torch.randperm(samples, generator=torch.Generator().manual_seed(seed))


def online(
    samples: Sequence[Sample],
    source: HiddenSource,
    order: Order,
    first: int,
    steps: int,
    rank: int = 0,
) -> Iterator[list[Batch]]:
    """The micro-batches of steps ``first`` .. ``first + steps - 1``, captured as they are needed."""
    for step in range(first, first + steps):
        yield [
            capture_batch([samples[i] for i in micro], source)
            for micro in order.indices(step, rank)
        ]


def capture_batch(samples: Sequence[Sample], source: HiddenSource) -> Batch:
    """One batch with the target's hidden states; rows padded on the right."""
    ids, mask = collate_tokens(samples)
    return Batch(ids, mask, source.capture(ids), tuple(s.key for s in samples))
