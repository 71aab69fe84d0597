"""What a training run costs before it starts: tokens, bytes on disk, and GPU hours.

The arithmetic counts multiplications that cannot be avoided: two operations per active parameter
and token for the frozen target's pass; for the drafter three times its forward pass, plus the
frozen head twice (its own gradient is not needed). Attention scores are left out (a few per cent at
these lengths), so the hours are a floor at the given rate.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

from casebook.catalog.models import ModelFacts
from casebook.dflash.config import DrafterConfig, default_layer_ids
from casebook.dflash.errors import TargetError
from casebook.dflash.hidden import token_bytes

INCIDENT_TOKENS = 1_870_000_000
"""After tokenisation; 902,087 completions, 1.64 billion output tokens (the incident's own count)."""


@dataclass(frozen=True)
class Plan:
    """What the run does. Rates are achieved, not peak."""

    tokens: int = INCIDENT_TOKENS
    epochs: float = 1.0
    mean_length: int = 2048
    """Tokens of a sample."""
    anchors: int = 512
    rate_tflops: float = 700.0
    """Matrix rate one GPU sustains, in 1e12 operations a second."""
    taps: int = 5
    draft_layers: int = 5
    block_size: int = 16


@dataclass(frozen=True)
class Budget:
    """Bytes and hours of one target under one plan."""

    bytes_per_token: int
    offline_bytes: int
    target_gpu_hours_per_epoch: float
    drafter_gpu_hours_per_epoch: float
    online_gpu_hours: float
    offline_gpu_hours: float
    active_parameters: float
    active_note: str
    """How the active parameters were found."""


def drafter_for(facts: ModelFacts, plan: Plan) -> DrafterConfig:
    """A drafter of the published shape for a target: its width, 32 heads of 128, its MLP size."""
    text = facts.text_config()
    hidden, layers = text.get("hidden_size"), text.get("num_hidden_layers")
    if not isinstance(hidden, int) or not isinstance(layers, int) or layers < 5:
        raise TargetError(f"{facts.name} tells no hidden_size or too few layers for a drafter.")
    vocabulary = int(text.get("vocab_size") or 1)
    return DrafterConfig(
        hidden_size=hidden,
        intermediate_size=int(text.get("intermediate_size") or 3 * hidden),
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        num_hidden_layers=plan.draft_layers,
        vocab_size=vocabulary,
        target_layer_ids=tuple(sorted(set(default_layer_ids(layers, plan.taps)))),
        num_target_layers=layers,
        mask_token_id=vocabulary - 1,
        block_size=plan.block_size,
    )


def active_parameters(facts: ModelFacts) -> tuple[float, str]:
    """Parameters that a token passes, and how that was found.

    The maker's own count where the name carries it (``-A3B``); else all of them, which for a mixture
    of experts is an upper bound: which layers have experts is told in too many ways to guess.
    """
    if facts.parameters is None:
        raise TargetError(f"The number of parameters of {facts.name} is not known.")
    if found := re.search(r"-A(\d+(?:\.\d+)?)B\b", facts.short_name, re.IGNORECASE):
        return float(found[1]) * 1e9, "from the name"
    return float(facts.parameters), "all, an upper bound" if facts.is_moe else "all"


def budget(facts: ModelFacts, plan: Plan) -> Budget:
    """The cost of ``plan`` for a target of the catalog."""
    drafter = drafter_for(facts, plan)
    per_token = token_bytes(drafter.taps, drafter.hidden_size)
    hour = plan.rate_tflops * 1e12 * 3600
    active, how = active_parameters(facts)
    target = 2 * active * plan.tokens / hour
    trained = _drafter_operations(drafter, plan) / hour
    return Budget(
        bytes_per_token=per_token,
        offline_bytes=per_token * plan.tokens,
        target_gpu_hours_per_epoch=target,
        drafter_gpu_hours_per_epoch=trained,
        online_gpu_hours=plan.epochs * (target + trained),
        offline_gpu_hours=target + plan.epochs * trained,
        active_parameters=active,
        active_note=how,
    )


def _drafter_operations(drafter: DrafterConfig, plan: Plan) -> float:
    """Per epoch: the context through fc and keys/values, the slots through the layers and the head."""
    h, d = drafter.hidden_size, drafter.head_dim
    context = (
        drafter.context_width * h
        + drafter.num_hidden_layers * 2 * h * drafter.num_key_value_heads * d
    )
    slot = drafter.parameter_count() - drafter.context_width * h
    samples = plan.tokens / plan.mean_length
    slots = samples * min(plan.anchors, plan.mean_length) * drafter.block_size
    scored = slots * (drafter.block_size - 1) / drafter.block_size
    return 6 * (context * plan.tokens + slot * slots) + 4 * h * drafter.vocab_size * scored


def table(models: list[ModelFacts], plan: Plan) -> pd.DataFrame:
    """One row a target; those whose size is not known are left out."""
    rows = []
    for facts in models:
        try:
            found = budget(facts, plan)
        except TargetError:
            continue
        rows.append(
            {
                "target": facts.short_name,
                "active parameters, 1e9": found.active_parameters / 1e9,
                "active: how": found.active_note,
                "bytes a token": found.bytes_per_token,
                "offline store, TB": found.offline_bytes / 1e12,
                "target, GPU hours an epoch": found.target_gpu_hours_per_epoch,
                "drafter, GPU hours an epoch": found.drafter_gpu_hours_per_epoch,
                "online, GPU hours": found.online_gpu_hours,
                "offline, GPU hours": found.offline_gpu_hours,
            }
        )
    return pd.DataFrame(rows).set_index("target")
