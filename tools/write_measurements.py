"""Write ``data/measurements/published.toml`` from a collection of published start-ups.

    python tools/write_measurements.py COLLECTION.jsonl

A line of the collection is one start-up as somebody published it. Here its names become ours, what its
author rounded is marked, and what was worked out rather than printed is left out.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parents[1] / "data/measurements/published.toml"
HEADER = """# Start-ups of SGLang that people published: what they launched and what the server printed.
#
# kind        log: quoted from the server's output; report: the author's own figures or account;
#             recipe: flags alone, of which the author says that they run
# release     the SGLang version, where the source states a released one; stated_release: its own words
# model       the checkpoint, where the catalog has it; shape_of: a catalog model with the same layers
#             (another quantization or a fine-tune), so that state and KV cache have the same size
# gpu         the catalog's name, where it has the device; gpu_inferred: the source does not say it
# launch      the flags, as far as they are published; setting: what else the author says of it
# launch_contradicts_log: the figures cannot come from these flags; the log is right
# gib         sizes as printed: SGLang writes "GB" and means GiB (2**30 bytes), per rank, to 0.01
# counts      tokens, slots and requests
# rounded     figures that the author rounded further; their last digit that is not 0 is the rounding
# lines       the quoted lines that hold the figures
# source      https://... is the page; "published log, index N" a log of a public repository, N its number
#             in a code-search index
"""
GIB = {
    "avail_mem_before_load_gb": "free_before_load",
    "weight_load_mem_usage_gb": "weights",
    "avail_after_load_gb": "free_after_load",
    "draft_weight_gb": "draft_weights",
    "conv_state_gb": "conv_state",
    "ssm_state_gb": "ssm_state",
    "intermediate_ssm_gb": "intermediate_ssm",
    "intermediate_conv_gb": "intermediate_conv",
    "k_size_gb": "k",
    "v_size_gb": "v",
    "kv_size_gb": "kv",
    "memory_pool_end_avail_gb": "free_after_pools",
    "draft_k_gb": "draft_k",
    "draft_v_gb": "draft_v",
    "draft_pool_end_avail_gb": "draft_free_after_pools",
    "prefill_graph_mem_gb": "prefill_graphs",
    "cuda_graph_mem_usage_gb": "decode_graphs",
    "available_gpu_mem_gb": "free_at_end",
}
COUNTS = {
    "max_mamba_cache_size": "state_slots",
    "kv_tokens": "kv_tokens",
    "max_total_num_tokens": "max_total_num_tokens",
    "max_running_requests": "max_running_requests",
    "context_len": "context_len",
    "chunked_prefill_size": "chunked_prefill_size",
    "nvidia_smi_used_mib": "smi_used_mib",
}
GPUS = (
    (r"NVIDIA B200", "B200"), (r"NVIDIA GB200", "GB200"), (r"NVIDIA B300", "B300"),
    (r"NVIDIA H200(?! \(limited)", "H200"), (r"NVIDIA H100 80GB", "H100"),
    (r"NVIDIA A100-SXM4-80GB", "A100-80"), (r"NVIDIA RTX 5090", "RTX 5090"),
    (r"NVIDIA RTX PRO 6000", "RTX PRO 6000"),
)  # fmt: skip
SHAPES = (
    (r"Qwen3\.8-27B", "Qwen/Qwen3.8-27B"), (r"Qwen3\.6/3\.8-27B", "Qwen/Qwen3.6-27B"),
    (r"Qw(?:en|opus)3\.6-27B(?! / )", "Qwen/Qwen3.6-27B"), (r"Qwen3\.6-35B", "Qwen/Qwen3.6-35B-A3B"),
    (r"Qwen3\.5-397B", "Qwen/Qwen3.5-397B-A17B"), (r"Qwen3\.5-35B", "Qwen/Qwen3.5-35B-A3B"),
    (r"Qwen3\.5-27B", "Qwen/Qwen3.5-27B"), (r"Qwen3\.5-9B", "Qwen/Qwen3.5-9B"),
    (r"Qwen3\.5-4B", "Qwen/Qwen3.5-4B"),
    (r"Nemotron-3-(?:Nano-)?Omni", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
)  # fmt: skip
NOT_PRINTED = {  # worked out by whoever collected the row, or told of another stage
    ("gb10-qwen35-35b-int4-dflash16", "state_slots"),
    ("gb200-inkling-nvfp4-mtp-f075", "state_slots"),
    ("dflash16-qwen35-4b-94g", "free_at_end"),
}
ROUNDED = {
    "rtxpro6000x4-qwen35-397b-fp4-f080": ["kv_tokens"],
    "rtxpro6000x4-qwen35-397b-fp4-f070": ["kv_tokens", "decode_graphs"],
    "rtx5090-qwen38-27b-nvfp4-cookbook-f09x": ["decode_graphs"],
    "extra-buffer-97slots": ["kv_tokens"],
    "qwen35-27b-mtp-pr35996": ["kv_tokens"],
    "gb10-qwen35-35b-int4-dflash16": ["kv_tokens", "kv"],
    "gb10x4-nemotron3nanoomni-case02-ep4": ["kv_tokens"],
    "gb10x4-nemotron3nanoomni-flashinfer": ["kv_tokens"],
    "gb10x4-nemotron3nanoomni-case06": ["kv_tokens"],
    "gb10-qwen38-27b-pool20": ["state_pool", "free_at_end"],
    "gb10-qwen38-27b-mmcs32": ["kv"],
    "mattbucci-3090x2-qwen36-27b": ["weights"],
}
FAILURES = (
    (r"Not enough GPU memory for hybrid", "hybrid state does not fit"),
    (r"too small to serve|capped to 0", "too few state slots"),
    (r"Loaded weights leave", "weights leave no room"),
    (r"pools do not fit|Pools left empty", "not enough memory"),
)
WHERE = (
    (r"loading", "loading weights"), (r"_init_mamba_pool", "allocating the state pool"),
    (r"graph capture|capture failed", "capturing graphs"), (r"prefill \(KV|first request", "serving"),
)  # fmt: skip
CONTRADICTED = {"gb10-ling30flashfin-fp4", "gb10-ling30tiny-bf16"}
SURVIVED = {"gfx1151-qwen35-35b-gptq"}  # serves, with wrong output
NOTES = {
    "rtxpro6000x4-qwen35-397b-fp4-mtp-f065": "Of the state and scratch for 128 requests nothing was left for the pools.",
    "rtxpro6000x4-qwen35-397b-fp4-mtp-f075": "As at fraction 0.65.",
    "rtxpro6000x4-qwen35-397b-fp4-mtp-f085": "The fraction at which it ran.",
    "gb200-qwen35-397b-fp4-agg-tp2ep2-mtp": "Four slots a request, 80 x 4 = 320; the author's limit is 40 requests at once, at 48 the KV cache is full.",
    "b300-qwen35-397b-fp4-extrabuffer-noradix": "The fraction came down from 0.85 to 0.80 for B300. Release inferred: about 0.5.10.post1.",
    "gb10-qwen38-27b-pool20": "The author gives the state pool as one sum.",
    "rtxpro6000x4-qwen35-397b-fp4-f080": "The author estimates graphs at 7 GiB. Out of memory in the first prefill of 8k tokens.",
    "rtxpro6000x4-qwen35-397b-fp4-f070": "",
    "gb10-ling30flashfin-fp4": "117 slots and not the 64 asked for; pools of 17.56 GiB fit a fraction of 0.89. At 0.75 the weights leave no room. Release inferred: 0.5.2x.",
    "gb200-inkling-nvfp4-mtp-f075": "Weights are about 148 GiB a GPU; the mend was fraction 0.85 and a context of 65536.",
    "h100-qwen36-35b-fp8-cap": "Asked for 128, got 50 without a word. Date approximate: 2026.",
    "rtxpro6000-qwen36-27b-fp8": "The state pool is larger than either half of the KV cache. Date approximate: 2026. Release inferred: 0.5.1x.",
}


def main(path: str) -> None:
    """Convert, and write."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines() if line.strip()]
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(HEADER + "\n" + "\n".join(_block(_convert(row)) for row in rows))
    print(f"{len(rows)} rows, {OUT.stat().st_size} bytes")


def _convert(row: dict[str, Any]) -> dict[str, Any]:
    key, measured, flags = row["id"], row["measured"], row["flags"]
    new: dict[str, Any] = {"id": key, "kind": row["row_kind"], "confidence": row["confidence"]}
    new["source"], new["date"] = row["source_url"], row["date"]
    stated = row["sglang_version"]
    if stated and (match := re.fullmatch(r"v?(0\.5\.\d+(?:\.post\d)?)(?:-cu130|-sm121)?", stated)):
        new["release"] = match[1]
    new["stated_release"] = stated if stated != new.get("release") else None
    new |= _model(row["model"] or "")
    new["quantization"] = row["quantization"]
    new["gpu"] = next((g for p, g in GPUS if re.match(p, row["gpu"])), None)
    new["stated_gpu"] = _bare(row["gpu"])
    new["gpu_inferred"] = None if row["gpu_confirmed"] else True
    new["gpus"], new["tp"], new["dp"] = row["gpu_count"], row["tp_size"], row["dp_size"]
    launch = [
        word for flag, value in flags.items() if flag[:2] == "--" for word in _words(flag, value)
    ]
    new["launch"] = shlex.join(launch)
    new["launch_contradicts_log"] = key in CONTRADICTED or None
    new["outcome"], new["failure"], new["error"], new["where"] = _outcome(row)
    new["rounded"] = ROUNDED.get(key)
    new["notes"] = NOTES.get(key, row["notes"])
    new["lines"] = row["raw_lines"] or None
    gib = {ours: measured[k] for k, ours in GIB.items() if measured.get(k) is not None}
    counts = {ours: measured[k] for k, ours in COUNTS.items() if measured.get(k) is not None}
    if key == "gb10-qwen38-27b-pool20":
        gib["state_pool"] = gib.pop("ssm_state")
    new["gib"] = {k: v for k, v in gib.items() if (key, k) not in NOT_PRINTED}
    new["counts"] = {k: v for k, v in counts.items() if (key, k) not in NOT_PRINTED}
    setting = {k: v for k, v in flags.items() if k[:2] != "--" or not _words(k, v)}
    setting |= setting.pop("env", {})
    new["setting"] = {re.sub(r"[^\w.-]+", "_", k).strip("_-"): str(v) for k, v in setting.items()}
    return {k: v for k, v in new.items() if v not in (None, "", [], {})}


def _model(said: str) -> dict[str, str]:
    from casebook.catalog.models import load_models

    name = said.split(" (")[0]
    new = {"stated_model": _bare(said)}
    if name in load_models():
        new["model"] = name
    shape = next((shape for pattern, shape in SHAPES if re.search(pattern, said)), None)
    if shape and "reduced" not in said and "model" not in new:
        new["shape_of"] = shape
    return new


def _bare(text: str) -> str:
    """Without the parentheses that stand around the whole."""
    return match[1] if (match := re.fullmatch(r"\(([^()]*)\)", text)) else text


def _words(flag: str, value: Any) -> list[str]:
    if value is True:
        return [flag]
    text = str(value)
    return [] if text == "default" or re.fullmatch(r"[\d.]+-[\d.]+", text) else [flag, text]


def _outcome(row: dict[str, Any]) -> tuple[str, str | None, str | None, str | None]:
    said, text = row["measured"]["outcome"], row["measured"]["error_text"] or ""
    if row["row_kind"] == "recipe":
        return "unknown", None, None, None
    if said == "ok" or row["id"] in SURVIVED:
        return "started", None, text or None, None
    kind = next((kind for pattern, kind in FAILURES if re.search(pattern, text)), None)
    where = next((step for pattern, step in WHERE if re.search(pattern, text)), None)
    return "died", kind or ("out of memory" if said == "oom" else "exception"), text, where


def _block(row: dict[str, Any]) -> str:
    tables = {k: row.pop(k) for k in ("gib", "counts", "setting") if k in row}
    lines = ["[[measurement]]", *(f"{key} = {_toml(value)}" for key, value in row.items())]
    for name, table in tables.items():
        inside = ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in table.items())
        lines.append(f"{name} = {{ {inside} }}")
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else json.dumps(name)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        if sum(map(len, map(str, value))) > 90:
            return "[\n" + "".join(f"    {_toml(item)},\n" for item in value) + "]"
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main(sys.argv[1])
