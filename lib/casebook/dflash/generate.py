"""Speculative decoding: draft a block, let the target verify it, keep what it would have said itself.

Greedy output equals the target's own greedy output; sampled output has the target's distribution.
The draft is deterministic, so sampling needs no rejection formula: draw the target's own token at
each position and accept the drafted one exactly when it is the one drawn.
Sources: z-lab dflash 0.1.0 ``dflash_generate``; SGLang's DFlash worker (commit A + 1 tokens a step).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from casebook.dflash import metrics
from casebook.dflash.model import Drafter, LayerCache
from casebook.dflash.target import HFTarget, Rollback


class Proposer(Protocol):
    """Whoever proposes the next tokens of one sequence."""

    def extend(self, hidden: Tensor, tokens: Tensor) -> None:
        """Newly committed tokens ``[1, n]`` and their taps ``[1, n, K*H]``."""
        ...

    def propose(self, last: int) -> Tensor:
        """Tokens to follow ``last``, which is committed but has no taps yet: int64 ``[n]``."""
        ...


class DrafterProposer:
    """A drafter over its own cache of projected context."""

    def __init__(self, drafter: Drafter, target: HFTarget, block_size: int | None = None) -> None:
        self.drafter, self.target = drafter, target
        self.block_size = block_size or drafter.config.block_size
        self.cache: list[LayerCache] | None = None

    @torch.no_grad()
    def extend(self, hidden: Tensor, tokens: Tensor) -> None:  # noqa: ARG002
        """Project the new context once and keep it."""
        self.cache = self.drafter.extend(self.cache, hidden.to(self.drafter.fc.weight.dtype))

    @torch.no_grad()
    def propose(self, last: int) -> Tensor:
        """One pass of the drafter over ``[last, MASK, ...]``; greedy choice of slots 1..B-1."""
        assert self.cache is not None
        device = self.cache[0][0].device
        mask_id = self.drafter.config.mask_token_id
        block = torch.full((1, self.block_size), mask_id, device=device)
        block[0, 0] = last
        embedded = self.target.embedding(block).to(self.drafter.fc.weight.dtype)
        out = self.drafter.draft(embedded, self.cache)[0, 1:]
        return F.linear(out.to(self.target.head.dtype), self.target.head).argmax(-1)


class FixedProposer:
    """Proposes the continuation of a known text: an oracle, or with ``wrong`` its opposite."""

    def __init__(
        self, text: Tensor, block_size: int, wrong_by: int = 0, vocabulary: int = 0
    ) -> None:
        self.text, self.block_size = text, block_size
        self.wrong_by, self.vocabulary = wrong_by, vocabulary
        self.length = 0

    def extend(self, hidden: Tensor, tokens: Tensor) -> None:  # noqa: ARG002
        """Count what is committed."""
        self.length += tokens.shape[1]

    def propose(self, last: int) -> Tensor:  # noqa: ARG002
        """The text's next B - 1 tokens, each shifted by ``wrong_by`` words."""
        found = self.text[self.length + 1 : self.length + self.block_size]
        found = F.pad(found, (0, self.block_size - 1 - len(found)))
        return (found + self.wrong_by) % self.vocabulary if self.wrong_by else found


class RepeatProposer:
    """Proposes the last token again and again: the guess any drafter must beat."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def extend(self, hidden: Tensor, tokens: Tensor) -> None:
        """Nothing to remember."""

    def propose(self, last: int) -> Tensor:
        """``last``, B - 1 times."""
        return torch.full((self.block_size - 1,), last)


@dataclass(frozen=True)
class Generation:
    """What came out, and how each verification step went."""

    tokens: tuple[int, ...]
    """The new tokens, end token included, prompt not."""
    accepted: tuple[int, ...]
    """A of each step: drafted tokens the target accepted."""
    cut: bool
    """Whether the last step went beyond the end token or the limit, and was trimmed."""

    @property
    def whole_steps(self) -> tuple[int, ...]:
        """A of the steps that were not trimmed."""
        return self.accepted[:-1] if self.cut else self.accepted

    @property
    def tau(self) -> float:
        """Mean of A + 1 over the steps that were not trimmed (z-lab's figure for one response)."""
        return metrics.zlab_tau([self.whole_steps])


def generate(
    target: HFTarget,
    proposer: Proposer,
    prompt: Tensor,
    max_new_tokens: int,
    eos_ids: Collection[int] = (),
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    accept: Callable[[Tensor, Tensor], Tensor] = metrics.accepted,
    rollback: Callable[[HFTarget, Any], Rollback] = Rollback,
) -> Generation:
    """Continue ``prompt`` int64 ``[P]`` by up to ``max_new_tokens`` tokens.

    Invariant: before each step the target's cache and the proposer hold all committed tokens but
    the newest, which the target has not read yet. ``accept`` and ``rollback`` are fields of a fault
    injection; leave them.
    """
    cache = target.new_cache()
    logits, hidden = target.step(prompt[None], cache)
    proposer.extend(hidden, prompt[None])
    last = int(_choose(logits[0, -1:], temperature, generator)[0])
    tokens, steps, cut = [last], [], False
    while not (tokens[-1] in eos_ids or len(tokens) >= max_new_tokens):
        drafted = proposer.propose(tokens[-1]).to(prompt.device)
        block = torch.cat((prompt.new_tensor([tokens[-1]]), drafted))
        back = rollback(target, cache)
        logits, hidden = target.step(block[None], cache)
        own = _choose(logits[0], temperature, generator)
        count = int(accept(drafted, own[:-1]))
        committed = [*drafted[:count].tolist(), int(own[count])]
        steps.append(count)
        back.keep(block[None, : count + 1])
        proposer.extend(hidden[:, : count + 1], block[None, : count + 1])
        kept = _until_end(committed, eos_ids, max_new_tokens - len(tokens))
        cut = len(kept) < len(committed)
        tokens += kept
    return Generation(tuple(tokens), tuple(steps), cut)


def plain(
    target: HFTarget, prompt: Tensor, max_new_tokens: int, eos_ids: Collection[int] = ()
) -> tuple[int, ...]:
    """The target's own greedy continuation, one token at a time, by its own cache."""
    cache = target.new_cache()
    logits, _ = target.step(prompt[None], cache)
    tokens = [int(logits[0, -1].argmax())]
    while tokens[-1] not in eos_ids and len(tokens) < max_new_tokens:
        logits, _ = target.step(prompt.new_tensor([[tokens[-1]]]), cache)
        tokens.append(int(logits[0, -1].argmax()))
    return tuple(tokens)


def _choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """The target's own token of each row ``[n, V]``: greedy, or drawn at ``temperature``."""
    if temperature <= 0:
        return logits.argmax(-1)
    weights = torch.softmax(logits.float() / temperature, -1)
    return torch.multinomial(weights, 1, generator=generator)[:, 0]


def _until_end(tokens: list[int], eos_ids: Collection[int], room: int) -> list[int]:
    ends = [i for i, t in enumerate(tokens) if t in eos_ids]
    return tokens[: min(ends[0] + 1 if ends else len(tokens), room)]
