"""What other estimators say of the same models. Runs in the peers' own environment, see memory_peers.py.

Reads cases as JSON from its input and writes answers as JSON: for each case and peer the bytes of a token
of KV cache and of one sequence's state on one rank, and tokens where the peer sizes a pool itself. A peer
that refuses a model is answered with its reason, not left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SYSTEMS = {
    "B200": "b200_sxm", "B300": "b300_sxm", "GB200": "gb200", "H200": "h200_sxm", "H100": "h100_sxm",
    "A100-80": "a100_sxm", "L40S": "l40s", "RTX PRO 6000": "rtx_pro_6000_server",
}  # fmt: skip
LONG, SHORT = 65536, 32768
Answer = dict[str, float]


def aiconfigurator(case: dict[str, Any], config: dict[str, Any]) -> Answer:  # noqa: ARG001
    from aiconfigurator_core.sdk.memory import estimate_kv_cache

    if case["gpu"] not in SYSTEMS and case["free_before"] is None:
        raise ValueError("no system for the GPU, and the source does not tell its memory")
    if case["fraction"] is None:
        raise ValueError("the source tells no memory fraction")
    known = case["gpu"] in SYSTEMS
    found = estimate_kv_cache(
        case["folder"],
        SYSTEMS[case["gpu"]] if known else "rtx_pro_6000_server",
        "sglang",
        "0.5.16",  # the newest whose data it brings for every system
        gpu_memory_capacity_bytes_override=None if known else case["free_before"],
        max_num_tokens=case["chunk"],
        max_batch_size=case["running"] or 32,
        memory_fraction_kind="of_total",
        memory_fraction_value=case["fraction"],
        tp_size=case["tp"],
        moe_tp_size=case["tp"] if case["moe"] else None,
        moe_ep_size=1 if case["moe"] else None,
        gemm_quant_mode="fp8_block" if case["quantization"] == "fp8" else None,
        kvcache_quant_mode="fp8" if case["kv_itemsize"] == 1 else None,
    )
    return {"kv_tokens": found["total_kv_size_tokens"]}


def kvfit(case: dict[str, Any], config: dict[str, Any]) -> Answer:
    from kvfit.architectures import estimate_cache

    def total(context: int) -> float:
        return estimate_cache(
            config, context_tokens=context, kv_bytes=case["kv_itemsize"]
        ).total_bytes

    return _from_two(total, case["tp"], heads=_heads(config))


def vramscout(case: dict[str, Any], config: dict[str, Any]) -> Answer:  # noqa: ARG001
    from vramscout.modern_core import _cache_parts, inspect_modern_model

    profile = inspect_modern_model(case["folder"])
    dtype = "fp8" if case["kv_itemsize"] == 1 else "bf16"

    def parts(context: int) -> dict[str, float]:
        return _cache_parts(profile, context, 1, dtype, "bf16", case["tp"], 1)

    long, short = parts(LONG), parts(SHORT)
    per_token = (sum(long.values()) - sum(short.values())) * 2**30 / (LONG - SHORT)
    fixed = sum(short.values()) * 2**30 - per_token * SHORT
    return {"kv_bytes_per_token": per_token, "state_bytes": fixed / case["tp"]}


def hf_mem(case: dict[str, Any], config: dict[str, Any]) -> Answer:
    from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size

    text = config.get("text_config") or config
    dtype = "F8_E4M3" if case["kv_itemsize"] == 1 else "BF16"

    def total(context: int) -> float:
        return compute_safetensors_kv_cache_size(text, dtype, context)

    return _from_two(total, case["tp"], heads=_heads(config))


def chimeraforge(case: dict[str, Any], config: dict[str, Any]) -> Answer:
    from chimeraforge.planner import hybrid

    text = hybrid.unwrap_text_config(config)
    layers = int(text["num_hidden_layers"])
    heads = _heads(config)
    width = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    attention = hybrid.count_attention_layers(text, layers)
    answer = {
        "kv_bytes_per_token": 2
        * attention
        * max(1, heads // case["tp"])
        * width
        * case["kv_itemsize"]
    }
    recurrent = hybrid.recurrent_state_elems(text)
    itemsize, _ = hybrid.state_dtype_bytes(text)
    per_layer = recurrent[0] if recurrent else 0
    state = hybrid.count_recurrent_layers(text, layers) * per_layer * itemsize
    return answer | {"state_bytes": state / case["tp"]}


def _heads(config: dict[str, Any]) -> int:
    text = config.get("text_config") or config
    return int(text.get("num_key_value_heads") or text.get("num_attention_heads") or 1)


def _from_two(total: Callable[[int], float], tp: int, heads: int) -> Answer:
    """Slope and intercept over the context; a peer without TP is divided as its cache would be."""
    per_token = (total(LONG) - total(SHORT)) / (LONG - SHORT)
    fixed = total(SHORT) - per_token * SHORT
    return {
        "kv_bytes_per_token": per_token * max(1, heads // tp) / heads,
        "state_bytes": fixed / tp,
    }


PEERS = {
    "aiconfigurator": aiconfigurator,
    "kvfit": kvfit,
    "vramscout": vramscout,
    "hf-mem": hf_mem,
    "chimeraforge": chimeraforge,
}


def main() -> None:
    """Answer every case, by every peer."""
    answers = []
    for case in json.load(sys.stdin):
        config = json.loads((Path(case["folder"]) / "config.json").read_text())
        for name, ask in PEERS.items():
            try:
                answer: dict[str, Any] = dict(ask(case, config))
            except Exception as error:
                answer = {"refused": " ".join(f"{type(error).__name__}: {error}".split())[:200]}
            answers.append({"row": case["id"], "peer": name, **answer})
    json.dump(answers, sys.__stdout__)


if __name__ == "__main__":
    keep, sys.stdout = sys.stdout, sys.stderr  # the peers print; the answers alone go out
    main()
    keep.flush()
