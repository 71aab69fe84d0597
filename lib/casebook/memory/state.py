"""The recurrent state of one sequence: what one Mamba slot holds.

A slot is what SGLang allocates per sequence (and per cached prefix) for all linear-attention layers
together. Attention layers keep keys and values per token instead; they are not counted here.
"""

from __future__ import annotations

from dataclasses import dataclass

from casebook.catalog.models import ModelFacts
from casebook.errors import ModelConfigError

_SSM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_CONV_BYTES = 2  # the convolution's window is kept in the model's bfloat16


@dataclass(frozen=True)
class StateSlot:
    """One slot: ``conv_bytes`` and ``ssm_bytes`` over all of ``layers`` linear-attention layers."""

    layers: int
    conv_bytes: int
    ssm_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both parts."""
        return self.conv_bytes + self.ssm_bytes


def gdn_slot(facts: ModelFacts, tp_size: int = 1) -> StateSlot:
    """The slot of a Gated DeltaNet model (Qwen3-Next, 3.5, 3.6, 3.8), per rank.

    Per layer: a window of ``kernel - 1`` columns over keys twice and values once, and a matrix
    ``value heads x key width x value width``. Mirrors ``Mamba2StateShape.create`` as Qwen3-Next's
    configuration calls it in SGLang 0.5.11. Raises ModelConfigError for another family.
    """
    config = facts.text_config()
    try:
        keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
        values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
        columns = config["linear_conv_kernel_dim"] - 1
    except KeyError as error:
        raise ModelConfigError(
            f"{facts.name} is not a Gated DeltaNet model: its configuration has no {error}."
        ) from error
    ssm_bytes = _SSM_BYTES[config.get("mamba_ssm_dtype") or "float32"]
    conv = (2 * keys + values) // tp_size * columns * _CONV_BYTES
    ssm = values // tp_size * config["linear_key_head_dim"] * ssm_bytes
    layers = facts.state_layers
    return StateSlot(layers, layers * conv, layers * ssm)
