"""DFlash: a small, exact drafter, its training and serving, and the checks that spare a cluster.

A DFlash drafter proposes a block of tokens in one pass, from the hidden states of the model it
drafts for (the target), which then verifies the block. Training accuracy does not tell whether such
a drafter will serve: it reaches 1.000 under nearly every fault people have reported. What tells is
to train a little, export, serve, and measure how many tokens the target accepts. This package does
that on a CPU; ``casebook.dflash.checks`` holds the 32 checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from casebook.dflash.config import DrafterConfig, default_layer_ids

if TYPE_CHECKING:
    from casebook.dflash.model import Drafter

__all__ = ["Drafter", "DrafterConfig", "default_layer_ids"]


def __getattr__(name: str) -> Any:
    # On demand, so that `casebook --help` does not wait for torch.
    if name != "Drafter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from casebook.dflash.model import Drafter

    return Drafter
