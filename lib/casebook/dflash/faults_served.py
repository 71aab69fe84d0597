"""Faults of export, launch and serving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from casebook.dflash import metrics
from casebook.dflash.faults_base import SPECFORGE, fault
from casebook.dflash.generate import Generation
from casebook.dflash.launched import ServeSettings
from casebook.dflash.target import Rollback


def _with(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A config edit: top-level keys, and ``dflash_*`` ones inside ``dflash_config``; None removes."""

    def edit(config: dict[str, Any]) -> dict[str, Any]:
        config = {**config, "dflash_config": dict(config["dflash_config"])}
        for key, value in changes.items():
            inside = key.startswith("dflash_")
            home = config["dflash_config"] if inside else config
            name = key.removeprefix("dflash_")
            if value is None:
                home.pop(name, None)
            else:
                home[name] = value
        return config

    return edit


def _prefixed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"draft_model.{name}": tensor for name, tensor in weights.items()}


def _layer_lost(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if not name.startswith("layers.1.")}


def _with_embedding(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return weights | {"embed_tokens.weight": torch.zeros(97, 32)}


class _CutOnly(Rollback):
    """Cuts the attention layers and leaves the recurrent ones as they are."""

    def keep(self, tokens: Tensor) -> None:
        surplus = self.cache.get_seq_length() - self.length - tokens.shape[1]
        for layer in self.cache.layers:
            if getattr(layer, "keys", None) is not None and surplus:
                layer.keys, layer.values = (
                    layer.keys[..., :-surplus, :],
                    layer.values[..., :-surplus, :],
                )


def _any_match(drafted: Tensor, target: Tensor) -> Tensor:
    return (drafted == target).sum(-1)


def _without_bonus(run: Generation) -> float:
    return metrics.zlab_tau([run.whole_steps]) - 1


_theta = _with(rope_theta=1e6, rope_parameters={"rope_type": "default", "rope_theta": 1e6})


FAULTS = (
    fault(
        "another rope base in the export",
        "https://github.com/sgl-project/sglang/pull/27477",
        config=_theta,
    ),
    fault(
        "partial rotary factor of the target copied",
        "https://github.com/vllm-project/speculators/issues/613",
        config=_with(partial_rotary_factor=0.25),
    ),
    fault(
        "another mask id in the export",
        f"{SPECFORGE}/pull/604",
        config=_with(dflash_mask_token_id=95),
    ),
    fault(
        "the end token as mask",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/2461",
        config=_with(dflash_mask_token_id=1),
    ),
    fault(
        "served with another block size",
        "SGLang 0.5.11 dflash_worker.py",
        launch=ServeSettings(6, 256),
    ),
    fault(
        "served beyond the trained length",
        "https://github.com/spiritbuun/buun-llama-cpp/issues/32",
        launch=ServeSettings(None, 4096),
    ),
    fault(
        "number of target layers not written",
        "SGLang up to 0.5.15 dflash_utils.py",
        config=_with(num_target_layers=None),
    ),
    fault(
        "a tap on the last layer",
        "https://github.com/lightseekorg/TorchSpec/issues/87",
        config=_with(dflash_target_layer_ids=[1, 3, 7]),
    ),
    fault(
        "full layers exported as sliding",
        "https://github.com/sgl-project/sglang/pull/34524",
        config=_with(
            layer_types=["sliding_attention"] * 2, sliding_window=5, use_sliding_window=True
        ),
    ),
    fault("tensor names with a prefix", "SGLang load_weights", tensors=_prefixed),
    fault("a layer left out of the export", "SGLang load_weights", tensors=_layer_lost),
    fault("embedding in the export", "this project's own runs", tensors=_with_embedding),
    fault(
        "hybrid state not rolled back",
        "https://github.com/huggingface/transformers/pull/45513",
        rollback=_CutOnly,
    ),
    fault(
        "any match accepted, not the leading ones",
        "https://github.com/z-lab/dflash/issues/57",
        accept=_any_match,
    ),
    fault(
        "acceptance length without the bonus",
        "z-lab, SGLang, vLLM and speculators, which define it differently",
        tau=_without_bonus,
    ),
)
