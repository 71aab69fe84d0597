"""A DFlash drafter's configuration: what the published ``config.json`` says, read and written.

The published file has two homes for two facts. The rope base stands at the top level (older
transformers, SGLang up to 0.5.12) or inside ``rope_parameters`` (transformers 5); the block size at
the top level (first checkpoints) or inside ``dflash_config`` (newer ones). We read either, refuse a
file whose two homes disagree, and write both, so that every reader finds what it looks for.

Sources: SpecForge ``configs/qwen3.6-27b-dflash.json`` at a6b6b02; z-lab dflash 0.1.0 ``model.py``;
SGLang 0.5.11 to 0.5.23 ``srt/speculative/dflash_utils.py`` and ``srt/models/dflash.py``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from casebook.dflash.errors import DrafterError

LayerType = Literal["full_attention", "sliding_attention"]
FULL: LayerType = "full_attention"
SLIDING: LayerType = "sliding_attention"
DEFAULT_THETA = 1e6  # what SGLang 0.5.11 takes where it finds no rope_theta
DEFAULT_BLOCK = 16  # what SGLang and z-lab take where no block size is given


def default_layer_ids(target_layers: int, draft_layers: int) -> tuple[int, ...]:
    """The target layers that a drafter listens to where its configuration names none.

    Layer ids count decoder layers from 0; id ``l`` means the residual stream *after* layer ``l``.
    One draft layer listens to the middle; more spread evenly from 1 to ``target_layers - 3``, with
    Python's rounding of halves to even. Source: ``build_target_layer_ids`` of z-lab and SGLang.
    """
    if draft_layers == 1:
        return (target_layers // 2,)
    span = target_layers - 4
    return tuple(round(1 + i * span / (draft_layers - 1)) for i in range(draft_layers))


@dataclass(frozen=True)
class DrafterConfig:
    """One drafter. ``hidden_size`` and ``vocab_size`` are the target's; the heads are its own."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    vocab_size: int
    target_layer_ids: tuple[int, ...]
    """Taps: target layers, 0-based, whose output is concatenated in this order."""
    num_target_layers: int
    mask_token_id: int
    block_size: int = DEFAULT_BLOCK
    """Slots of a block: the anchor and ``block_size - 1`` drafted tokens."""
    rope_theta: float = DEFAULT_THETA
    layer_types: tuple[LayerType, ...] = ()
    """One a draft layer; empty means all full. Sliding layers are causal inside a block."""
    sliding_window: int | None = None
    """Tokens a query of a sliding layer sees, itself included."""
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 40960
    attention_bias: bool = False
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        types = tuple(self.layer_types) or (FULL,) * self.num_hidden_layers
        object.__setattr__(self, "layer_types", types)
        object.__setattr__(self, "target_layer_ids", tuple(self.target_layer_ids))
        object.__setattr__(self, "rope_theta", float(self.rope_theta))
        if fault := self._fault():
            raise DrafterError(f"The drafter's configuration {fault}.")

    def _fault(self) -> str | None:
        positive = (
            *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
            *("head_dim", "num_hidden_layers", "vocab_size", "num_target_layers"),
        )
        for name in positive:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                return f"has {name} {value!r}, which is no positive whole number"
        if self.block_size < 2:
            return f"has block_size {self.block_size}; a block needs an anchor and one more slot"
        if self.head_dim % 2:
            return f"has head_dim {self.head_dim}; rotary positions need an even one"
        if self.num_attention_heads % self.num_key_value_heads:
            return (
                f"has {self.num_attention_heads} query heads, which {self.num_key_value_heads} "
                "key/value heads do not divide"
            )
        if not 0 <= self.mask_token_id < self.vocab_size:
            return (
                f"has mask_token_id {self.mask_token_id}, outside the vocabulary of "
                f"{self.vocab_size} words"
            )
        if self.rope_theta <= 0:
            return f"has rope_theta {self.rope_theta}, which is not positive"
        return self._layer_fault()

    def _layer_fault(self) -> str | None:
        ids = self.target_layer_ids
        if not ids or list(ids) != sorted(set(ids)):
            return f"has target_layer_ids {list(ids)}, which must be unique and increasing"
        if ids[0] < 0 or ids[-1] >= self.num_target_layers - 1:
            return (
                f"has target_layer_ids {list(ids)}; with {self.num_target_layers} target layers "
                f"they must lie in 0..{self.num_target_layers - 2}, for the last layer's output "
                "cannot be captured"
            )
        if len(self.layer_types) != self.num_hidden_layers:
            return (
                f"has {len(self.layer_types)} layer_types for {self.num_hidden_layers} draft layers"
            )
        if unknown := set(self.layer_types) - {FULL, SLIDING}:
            return f"has layer_types {sorted(unknown)}; known are {FULL} and {SLIDING}"
        if SLIDING in self.layer_types and (self.sliding_window or 0) < 1:
            return f"has sliding layers but sliding_window {self.sliding_window!r}"
        return None

    @property
    def taps(self) -> int:
        """K, the number of target layers concatenated."""
        return len(self.target_layer_ids)

    @property
    def context_width(self) -> int:
        """K * H, the width of one token's captured hidden states."""
        return self.taps * self.hidden_size

    def windows(self) -> tuple[int | None, ...]:
        """Per draft layer: the sliding window in tokens, or None for full attention."""
        return tuple(self.sliding_window if t == SLIDING else None for t in self.layer_types)

    def parameter_count(self) -> int:
        """Trainable parameters: the target's embedding and head are not in the checkpoint."""
        h, d, i = self.hidden_size, self.head_dim, self.intermediate_size
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        bias = (heads + 2 * groups) * d + h if self.attention_bias else 0
        layer = 2 * h * heads * d + 2 * h * groups * d + 2 * d + 3 * h * i + 2 * h + bias
        return self.taps * h * h + 2 * h + self.num_hidden_layers * layer

    def replaced(self, **changes: Any) -> DrafterConfig:
        """The same configuration with some fields changed, checked again."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """The ``config.json`` that SGLang, vLLM, SpecForge and z-lab's loaders take.

        Both rope schemas and both block-size keys are there; ``auto_map`` is not, for we ship no
        Python file beside the weights; nor is anything of a partial or multimodal rope, which a
        drafter does not have (speculators#613: copied from a Qwen3.5 target it costs everything).
        """
        sliding = SLIDING in self.layer_types
        return {
            "architectures": ["DFlashDraftModel"],
            "attention_bias": self.attention_bias,
            "attention_dropout": 0.0,
            "block_size": self.block_size,
            "dflash_config": {
                "block_size": self.block_size,
                "mask_token_id": self.mask_token_id,
                "target_layer_ids": list(self.target_layer_ids),
            },
            "dtype": "bfloat16",
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": self.initializer_range,
            "intermediate_size": self.intermediate_size,
            "layer_types": list(self.layer_types),
            "max_position_embeddings": self.max_position_embeddings,
            "max_window_layers": self.num_hidden_layers,
            "model_type": "qwen3",
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "num_target_layers": self.num_target_layers,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "rope_scaling": None,
            "rope_theta": self.rope_theta,
            "sliding_window": self.sliding_window,
            "tie_word_embeddings": False,
            "use_cache": True,
            "use_sliding_window": sliding,
            "vocab_size": self.vocab_size,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DrafterConfig:
        """The configuration in a published ``config.json``; DrafterError where it is none of ours."""
        if "transformer_layer_config" in data:
            raise DrafterError(
                "This config.json is in the speculators format (transformer_layer_config), which "
                "SGLang does not read; convert the checkpoint to the published DFlash form first."
            )
        inner = data.get("dflash_config")
        inner = inner if isinstance(inner, Mapping) else {}
        if "hidden_size" not in data or not (inner or "target_layer_ids" in data):
            raise DrafterError(
                "This config.json describes no DFlash drafter: it lacks hidden_size or "
                "dflash_config; give the drafter's directory, not the target's."
            )
        if (act := data.get("hidden_act", "silu")) != "silu":
            raise DrafterError(
                f"The drafter has hidden_act {act!r}; SGLang's DFlash knows silu only."
            )
        if data.get("is_causal") is not None:
            raise DrafterError(
                "The drafter sets is_causal, which changes its in-block attention; "
                "this form is not supported, for releases before 0.5.20 ignore the key."
            )
        try:
            return cls(**_values(data, inner))
        except (TypeError, ValueError, KeyError) as error:
            raise DrafterError(f"The drafter's config.json is not usable: {error}.") from error

    def write(self, directory: Path) -> Path:
        """Write ``config.json`` into ``directory`` (made on demand) and return its path."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / "config.json"
        path.write_text(json.dumps(self.to_json(), indent=2, sort_keys=True) + "\n", "utf-8")
        return path

    @classmethod
    def read(cls, directory: Path) -> DrafterConfig:
        """The configuration of the drafter in ``directory``."""
        return cls.from_json(read_json(directory / "config.json"))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; DrafterError with the reason where there is none."""
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise DrafterError(
            f"There is no {path.name} in {path.parent}; give a directory that has one."
        ) from None
    except (OSError, ValueError) as error:
        raise DrafterError(f"{path} cannot be read as JSON ({error}); write it again.") from error
    if not isinstance(value, dict):
        raise DrafterError(f"{path} holds no JSON object; write it again.")
    return value


def rope_theta_of(data: Mapping[str, Any]) -> float:
    """The rope base, from ``rope_parameters`` or the top level; refused where the two disagree."""
    inner = data.get("rope_parameters")
    found = {
        float(value)
        for value in (data.get("rope_theta"), (inner or {}).get("rope_theta"))
        if value is not None
    }
    if len(found) > 1:
        raise DrafterError(
            f"The drafter's config.json gives two rope bases, {' and '.join(map(str, sorted(found)))}; "
            "SGLang up to 0.5.12 reads one and later releases the other."
        )
    return found.pop() if found else DEFAULT_THETA


def block_size_of(data: Mapping[str, Any]) -> int:
    """The block size, from ``dflash_config`` or the top level; refused where the two disagree."""
    inner = data.get("dflash_config") or {}
    found = {v for v in (data.get("block_size"), inner.get("block_size")) if v is not None}
    if len(found) > 1:
        raise DrafterError(
            f"The drafter's config.json gives two block sizes, {sorted(found)}; readers differ in "
            "which they take, so make them one."
        )
    return int(found.pop()) if found else DEFAULT_BLOCK


def _values(data: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    taken = {f.name: data[f.name] for f in fields(DrafterConfig) if data.get(f.name) is not None}
    for key in ("target_layer_ids", "num_target_layers", "mask_token_id"):
        if inner.get(key) is not None:
            taken[key] = inner[key]
    for name in ("hidden_size", "num_attention_heads"):
        if not isinstance(data[name], int) or data[name] < 1:
            raise DrafterError(
                f"The drafter's config.json has {name} {data[name]!r}, no whole number."
            )
    taken.setdefault("head_dim", data["hidden_size"] // data["num_attention_heads"])
    taken.setdefault("num_key_value_heads", data["num_attention_heads"])
    if "mask_token_id" not in taken:
        raise DrafterError(
            "The drafter's config.json names no mask_token_id; SGLang would then add a new word "
            "to the tokenizer, which is not the word that was trained."
        )
    if "num_target_layers" not in taken:
        raise DrafterError(
            "The drafter's config.json names no num_target_layers; SGLang up to 0.5.15 then checks "
            "the taps against the drafter's own depth and refuses them."
        )
    taken.setdefault(
        "target_layer_ids",
        default_layer_ids(taken["num_target_layers"], taken["num_hidden_layers"]),
    )
    if not data.get("use_sliding_window", True) and not data.get("layer_types"):
        taken.pop("sliding_window", None)
    return taken | {"rope_theta": rope_theta_of(data), "block_size": block_size_of(data)}
