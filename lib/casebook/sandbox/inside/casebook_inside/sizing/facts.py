"""What the release's sizing code works with: its own figures, before any memory is divided.

The vectorised closed form in the lab takes these and restates only the division.
"""

from __future__ import annotations

import importlib
import math
from typing import Any


def facts_of(runner: Any) -> dict[str, Any]:
    """Figures of one rank, as the release computes them. ``runner`` has its pools."""
    holder = getattr(runner, "kv_cache_configurator", None) or runner
    config = _state_config(runner, holder)
    configurator = _configurator(holder)
    args = runner.server_args
    table = runner.req_to_token_pool.req_to_token
    found: dict[str, Any] = {
        "context_len": int(runner.model_config.context_len),
        "page_size": int(runner.page_size),
        "kv_bytes_per_token": _cell_bytes(runner, config, configurator),
        "configurator": _kind(runner, configurator),
        "slots_per_request": _slots_per_request(runner, holder, config),
        "dp_size": _attention_dp(runner),
        "ranks": int(args.tp_size) * int(args.pp_size),
        "post_capture": bool(getattr(holder, "post_capture_kv_active", False)),
        "table_columns": int(table.shape[1]),
        "table_padding_rows": int(table.shape[0]) - int(runner.req_to_token_pool.size),
        # 0.5.22 on: off the budget before it is divided among tokens.
        "fixed_overhead_bytes": int(getattr(configurator, "_fixed_overhead_bytes", 0)),
        "multimodal_reserve_gib": _multimodal_reserve(runner),
    }
    if config is None:
        return found
    params = config.mamba2_cache_params
    shape = params.shape
    found["state"] = {
        "layers": int(runner.req_to_token_pool.mamba_pool.num_mamba_layers),
        "all_layers": len(params.layers),
        "stage_layers": _stage_layers(runner, list(params.layers)),
        "bytes_per_slot": int(params.mamba_cache_per_req),
        "conv_shapes": [[int(n) for n in one] for one in shape.conv],
        "conv_bytes_per_element": params.dtype.conv.itemsize,
        "ssm_elements": math.prod(int(n) for n in shape.temporal),
        "ssm_bytes_per_element": params.dtype.temporal.itemsize,
        "ssm_dtype": str(params.dtype.temporal).removeprefix("torch."),
        "replay": bool(
            getattr(args, "enable_linear_replayssm", False)
            or getattr(args, "enable_linear_replayssm_spec", False)
            or getattr(args, "enable_gdn_replayssm_spec", False)
        ),
        "extra_bytes_per_slot": int(getattr(holder, "extra_mamba_cache_bytes_per_req", 0) or 0),
    }
    return found


def _state_config(runner: Any, holder: Any) -> Any:
    if hasattr(holder, "mambaish_config"):
        return holder.mambaish_config
    return getattr(runner, "mambaish_config", None)


def _configurator(holder: Any) -> Any:
    """0.5.11 on: the object that divides among tokens; None before."""
    try:
        from sglang.srt.model_executor.pool_configurator import create_memory_pool_configurator
    except ImportError:
        return None
    return create_memory_pool_configurator(holder)


def _kind(runner: Any, configurator: Any) -> str:
    if configurator is not None:
        return type(configurator).__name__
    return "HybridSWAPoolConfigurator" if runner.is_hybrid_swa else "DefaultPoolConfigurator"


def _cell_bytes(runner: Any, config: Any, configurator: Any) -> int:
    """Bytes that the division counts for one token, of the target and where so of the draft."""
    if configurator is not None:
        return int(getattr(configurator, "_cell_size", 0) or 0)
    # Up to 0.5.10 the runner computes it from a number of layers.
    layers = runner.num_effective_layers
    if config is not None:
        ids = config.full_attention_layer_ids
        layers = len([i for i in ids if runner.start_layer <= i < runner.end_layer])
    return int(runner.get_cell_size_per_token(layers))


def _slots_per_request(runner: Any, holder: Any, config: Any) -> int | None:
    if config is None:
        return None
    if hasattr(holder, "_calculate_mamba_ratio"):
        return int(holder._calculate_mamba_ratio())
    # Up to 0.5.9 the rule stands inside a longer function of the runner.
    args = runner.server_args
    if args.disable_radix_cache:
        return 1
    extra = 0
    if args.enable_mamba_extra_buffer():
        extra = 2 if runner.spec_algorithm.is_none() else 1
    return 3 + extra


def _attention_dp(runner: Any) -> int:
    args = runner.server_args
    return int(args.dp_size) if args.enable_dp_attention else 1


def _multimodal_reserve(runner: Any) -> float:
    """0.5.18 on: what a multimodal model's transport of features keeps free, in GiB."""
    try:
        module = importlib.import_module("sglang.srt.mem_cache.kv_cache_configurator")
        reserve = module.mm_runtime_reservation_gb
    except (ImportError, AttributeError):
        return 0.0
    transport = getattr(runner.server_args, "mm_feature_transport", None)
    if hasattr(module, "get_mm"):
        transport = module.get_mm().mm_feature_transport
    return float(
        reserve(is_multimodal=runner.model_config.is_multimodal, mm_feature_transport=transport)
    )


def _stage_layers(runner: Any, layers: list[int]) -> int:
    """State layers of the pipeline stage that has most of them."""
    args = runner.server_args
    if args.pp_size == 1:
        return len(layers)
    from sglang.srt.distributed.utils import get_pp_indices

    total = runner.model_config.num_hidden_layers
    stages = [get_pp_indices(total, rank, args.pp_size) for rank in range(args.pp_size)]
    return max(len([i for i in layers if first <= i < last]) for first, last in stages)
