"""Write ``data/models/*.toml`` from a folder of collected checkpoint configurations.

Development only. The folder holds one subfolder a model with its ``config.json`` (and, for some, a
file whose name ends in ``hf_quant_config.json``), and ``SOURCES.tsv`` with the columns model,
folder, status, parameters, checkpoint_bytes, license_as_stated, source and notes. Each written file
is read back and compared with the originals before it replaces the old one.

    python tools/import_models.py FOLDER [--out data/models]

The tables at the end say in our own words what the free-text columns said of the models known so
far; for a model they do not name, the columns are used as they are.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

from casebook.catalog.compact import pack
from casebook.catalog.models import read_model_file

_WIDTH = 100
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write data/models/*.toml from a folder.")
    parser.add_argument("folder", type=Path, help="holds SOURCES.tsv and one subfolder a model")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).resolve().parents[1] / "data" / "models"
    )
    options = parser.parse_args()
    with (options.folder / "SOURCES.tsv").open(encoding="utf-8", newline="") as file:
        rows = {row["folder"]: row for row in csv.DictReader(file, delimiter="\t")}
    folders = sorted(p.parent.name for p in options.folder.glob("*/config.json"))
    if missing := set(folders) ^ set(rows):
        raise SystemExit(f"SOURCES.tsv and the subfolders differ in: {', '.join(sorted(missing))}")
    slugs = {folder: rows[folder]["model"].split("/")[-1].lower() for folder in folders}
    if len(set(slugs.values())) < len(slugs):
        raise SystemExit("two models have the same short name; their file names would collide")
    options.out.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        documents = read_documents(options.folder / folder)
        text = model_file(header(rows[folder]), documents)
        path = options.out / f"{slugs[folder]}.toml"
        trial = path.with_suffix(".trial")
        trial.write_text(text, encoding="utf-8")
        facts = read_model_file(trial)
        restored: dict[str, Any] = {"config": facts.config()}
        if facts.hf_quant_config() is not None:
            restored["hf_quant_config"] = facts.hf_quant_config()
        if json.dumps(restored, sort_keys=True) != json.dumps(documents, sort_keys=True):
            raise SystemExit(f"{trial} does not give back the original of {folder}")
        trial.replace(path)
    print(f"{len(folders)} models written to {options.out}")
    return 0


def read_documents(folder: Path) -> dict[str, Any]:
    """The JSON files of one model by the name of their table."""
    documents = {"config": json.loads((folder / "config.json").read_text(encoding="utf-8"))}
    for path in folder.glob("*hf_quant_config.json"):
        documents["hf_quant_config"] = json.loads(path.read_text(encoding="utf-8"))
    return documents


def header(row: dict[str, str]) -> dict[str, Any]:
    """What is known of a model beside its JSON files."""
    name = row["model"]
    fields: dict[str, Any] = {"name": name, "aliases": aliases(name)}
    count, note = leading_int(row["parameters"])
    if count:
        fields["parameters"] = count
        if note:
            fields["parameters_note"] = PARAMETER_NOTES.get(note, note)
    size, note = leading_int(row["checkpoint_bytes"])
    if size:
        fields["checkpoint_bytes"] = size
        fields["checkpoint_bytes_exact"] = name in EXACT_BYTES
        note = BYTES_NOTES.get(name) or SIZE_NOTES.get(note, note)
        fields["checkpoint_bytes_note"] = note or "2 bytes a parameter"
    fields["status"] = row["status"].split()[0].rstrip(";,")
    if row["license_as_stated"]:
        fields["license"] = row["license_as_stated"]
    fields["source"] = SOURCES.get(name) or reworded_source(row["source"])
    notes = NOTES.get(name, row["notes"] if name not in KNOWN else "")
    if notes:
        fields["notes"] = notes
    return fields


def aliases(name: str) -> list[str]:
    short = name.split("/")[-1]
    found = [short, *MORE_ALIASES.get(name, ())]
    if short.startswith("NVIDIA-"):
        found.append(short.removeprefix("NVIDIA-"))
    return [alias for alias in found if alias != name]


def leading_int(cell: str) -> tuple[int | None, str]:
    """``"~123 (how)"`` as 123 and how."""
    found = re.match(r"~?(\d+)\+?\s*(.*)", cell)
    if not found:
        return None, cell.strip()
    return int(found[1]), found[2].strip().removeprefix("(").removesuffix(")")


def reworded_source(text: str) -> str:
    wheel = re.match(r"(\S+)==(\S+) wheel \(PyPI\) (\S+)", text)
    if wheel:
        return f"PyPI wheel {wheel[1]} {wheel[2]}: {wheel[3]}"
    sdist = re.match(r"PyPI sdist (\S+)==(\S+) (\S+) \(MANIFEST: .*captured (\S+)\)", text)
    if sdist:
        return (
            f"PyPI source distribution {sdist[1]} {sdist[2]}: {sdist[3]}, "
            f"fetched from the model's repository on {sdist[4]}"
        )
    github = re.match(r"github ([^@\s]+)@([0-9a-f]+) (\S+)(.*)", text)
    if github:
        return f"GitHub {github[1]} at {github[2]}: {github[3]}"
    return text


# --- TOML ---------------------------------------------------------------------------------------


def model_file(fields: dict[str, Any], documents: dict[str, Any]) -> str:
    """The text of one file of ``data/models/``."""
    packed, compact = pack(documents)
    forms = {form: list(found) for form, found in compact.model_dump().items() if found}
    lines = [f"{key} = {toml_value(value)}" for key, value in fields.items()]
    if forms:
        lines += toml_table(["compact"], forms)
    for name, document in packed.items():
        lines += toml_table([name], document)
    return "\n".join(lines) + "\n"


def toml_table(path: list[str], table: dict[str, Any]) -> list[str]:
    """A table with its scalars first, then its larger tables (TOML leaves no other order)."""
    lines: list[str] = []
    nested: list[str] = []
    for key, value in table.items():
        line = f"{toml_key(key)} = {toml_value(value)}"
        if isinstance(value, dict) and (len(line) > _WIDTH or len(path) + len(value) < 2):
            nested.append(key)
        elif isinstance(value, list) and len(line) > _WIDTH:
            lines += [f"{toml_key(key)} = [", *wrapped(value), "]"]
        else:
            lines.append(line)
    if lines or not nested:
        lines = ["", f"[{'.'.join(map(toml_key, path))}]", *lines]
    for key in nested:
        lines += toml_table([*path, key], table[key])
    return lines


def wrapped(items: list[Any]) -> list[str]:
    """A long list's items, several a line while they fit."""
    lines = [""]
    for item in map(toml_value, items):
        if len(item) > _WIDTH and item.startswith("[") and item.endswith("]"):
            inner = next(i for i in items if toml_value(i) == item)
            lines += ["    [", *("    " + line for line in wrapped(inner)), "    ],", ""]
        elif lines[-1] and len(lines[-1]) + len(item) + 2 <= _WIDTH:
            lines[-1] += f" {item},"
        else:
            lines.append(f"    {item},")
    return [line for line in lines if line]


def toml_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else toml_string(key)


def toml_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return toml_string(value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    raise TypeError(f"TOML has no {type(value).__name__}")


# --- the free-text columns in our words ---------------------------------------------------------

MORE_ALIASES = {
    "meta-llama/Llama-3.1-8B": ["meta-llama/Meta-Llama-3.1-8B", "Meta-Llama-3.1-8B"],
}

# Models whose byte count was quoted from the checkpoint's index, file or per-dtype tensor totals.
EXACT_BYTES = {
    "Qwen/Qwen3.5-122B-A10B",
    "Qwen/Qwen3.5-397B-A17B",
    "Qwen/Qwen3.6-27B",
    "Qwen/Qwen3.6-35B-A3B",
    "Qwen/Qwen3.8-27B",
    "z-lab/Qwen3.6-35B-A3B-DFlash",
}

PARAMETER_NOTES = {
    "computed, transformers meta device; excludes MTP": (
        "computed by building the model without storage; prediction layers not counted"
    ),
    "computed logical count; excludes MTP": (
        "computed for the unquantized model; prediction layers not counted"
    ),
    "computed; no embed/lm_head, shares target": (
        "computed; embeddings and head are the target model's and not counted"
    ),
    "logical, base model": "of the unquantized model",
    "logical": "of the unquantized model",
}

_TWO_BYTES = "computed: 2 bytes a parameter"
SIZE_NOTES = {
    "2*params, BF16": _TWO_BYTES,
    "2*params": _TWO_BYTES,
    "2*params; A_log etc may be f32": "computed: 2 bytes a parameter; a few may be float32",
    "2*params; A_log/dt_bias may be f32": (
        "computed: 2 bytes a parameter; more if A_log and dt_bias are float32"
    ),
}

_INDEX_27B = (
    "total_size of the published index; 26895998464 parameters language, 424699392 prediction "
    "layer, 460730096 vision"
)
BYTES_NOTES = {
    "Qwen/Qwen3-8B": _TWO_BYTES,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        "computed: 2 bytes a parameter; 151.49 GiB has been reported"
    ),
    "Qwen/Qwen3-Next-80B-A3B-Thinking": "computed: 2 bytes a parameter",
    "Qwen/Qwen3.5-122B-A10B": (
        "from the published totals: 125086490096 parameters in BF16, 6912 in FP32"
    ),
    "Qwen/Qwen3.5-27B": "computed: 2 bytes a parameter, as in Qwen3.6-27B, which has its shape",
    "Qwen/Qwen3.5-2B": _TWO_BYTES,
    "Qwen/Qwen3.5-35B-A3B": "that of Qwen3.6-35B-A3B, which has its shape",
    "Qwen/Qwen3.5-397B-A17B": (
        "from the published totals (2834 BF16 and 90 FP32 tensors), confirmed by computation"
    ),
    "Qwen/Qwen3.5-4B": _TWO_BYTES,
    "Qwen/Qwen3.6-27B": _INDEX_27B,
    "Qwen/Qwen3.8-27B": _INDEX_27B,
    "Qwen/Qwen3.6-27B-FP8": (
        "computed: linears of language and prediction layers in FP8; embeddings, head, vision, "
        "in_proj_a, in_proj_b and convolution in BF16; 29 GiB has been reported"
    ),
    "Qwen/Qwen3.6-35B-A3B": (
        "total_size of the published index; 69321221376 text, 2582424032 vision and prediction layer"
    ),
    "Qwen/Qwen3.6-35B-A3B-FP8": "computed as for Qwen3.6-27B-FP8",
    "ibm-granite/granite-4.0-h-small": "computed: 2 bytes a parameter",
    "meta-llama/Llama-3.1-8B": _TWO_BYTES,
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": _TWO_BYTES,
    "nvidia/Qwen3.6-27B-NVFP4": "computed from quantized_layers; about 22 GB has been reported",
    "nvidia/Qwen3.6-35B-A3B-NVFP4": "computed from quantized_layers",
    "HyzeAI/Hyze1B": _TWO_BYTES,
    "sgl-project/SpecForge-qwen3.5-35b-a3b-dflash": _TWO_BYTES,
    "sgl-project/SpecForge-qwen3.5-4b-dflash": _TWO_BYTES,
    "z-lab/Qwen3-8B-DFlash-b16": _TWO_BYTES,
    "z-lab/Qwen3.6-27B-DFlash": "computed: 2 bytes a parameter; about 3.3 GB has been reported",
    "z-lab/Qwen3.6-35B-A3B-DFlash": "size of the published model.safetensors as quoted",
}

_MEGATRON_FIXTURE = "Megatron-Bridge test fixture FALCON_H1_500M_CONFIG"
SOURCES = {
    "HyzeAI/Hyze1B": "model page HyzeAI/Hyze1B, main: config.json, transcribed",
    "LiquidAI/LFM2-1.2B": (
        "model page FastFlowLM/LFM2-1.2B-NPU2: config.json without the keys that only its NPU "
        "runtime reads"
    ),
    "LiquidAI/LFM2-2.6B": (
        "model page LiquidAI/LFM2-2.6B-Transcript-ONNX: config.json, with a public test fixture"
    ),
    "LiquidAI/LFM2-350M": (
        "model page Thorge-AI/lfm2-web-runtime-weights: Models/350M/config.json without "
        "transformers.js_config"
    ),
    "LiquidAI/LFM2-700M": "model page LiquidAI/LFM2-700M, refs/pr/8: config.json, transcribed",
    "LiquidAI/LFM2-8B-A1B": "public excerpts of the published config.json, as of 2026-08-19",
    "Qwen/Qwen3.5-0.8B": "a public log that prints the published config.json, transcribed",
    "Qwen/Qwen3.5-2B": "widths and depth from public excerpts, the rest by the family's pattern",
    "Qwen/Qwen3.5-4B": (
        "text part from public excerpts and GitHub THUDM/slime at 624b824a: "
        "scripts/models/qwen3.5-4B.sh; vision part inferred"
    ),
    "Qwen/Qwen3.6-27B": (
        "PyPI wheel aiconfigurator-core 0.12.0: "
        "aiconfigurator_core/model_configs/nvidia--Qwen3.6-27B-NVFP4_config.json without its "
        "quantization and dtype keys"
    ),
    "Qwen/Qwen3.6-27B-FP8": "Qwen3.6-27B with the FP8 block-128 quantization of its model card",
    "Qwen/Qwen3.6-35B-A3B-FP8": (
        "Qwen3.6-35B-A3B with the FP8 block-128 quantization of its model card"
    ),
    "Qwen/Qwen3.8-27B": (
        "GitHub casys-kaist/LLMServingSim at 0d3de681adbd9c515fc378e94e3e625b6e250dad: "
        "configs/model/Qwen/Qwen3.8-27B.json (text part); the rest from Qwen3.6-27B"
    ),
    "ibm-granite/granite-4.0-h-1b": (
        "a public test fixture, with model page bnbnoman01/test: config.json"
    ),
    "ibm-granite/granite-4.0-h-350m": (
        "model page Org-Exp/SSM-350m: config.json, with the GGUF metadata of Ollama's "
        "ibm/granite4:350m-h"
    ),
    "ibm-granite/granite-4.0-h-micro": (
        "model page anuj6316/granite, main: config.json of a fine-tune, cut off before its last keys"
    ),
    "ibm-granite/granite-4.0-h-tiny": (
        "a public test fixture; multipliers from the GGUF metadata of Ollama's granite4:tiny-h"
    ),
    "nvidia/Nemotron-H-8B-Base-8K": "public excerpts of the published config.json",
    "tiiuae/Falcon-H1-0.5B-Instruct": (
        f"{_MEGATRON_FIXTURE}, with model page MerlinSafety/HybridIntelligence-0.5B: config.json "
        "(mamba_d_ssm 1536)"
    ),
    "tiiuae/Falcon-H1-1.5B-Instruct": (
        "AgileRL memory-test fixture, with the table of the transformers documentation"
    ),
    "tiiuae/Falcon-H1-3B-Instruct": "a public test fixture that leaves out fields it does not read",
    "tiiuae/Falcon-H1-7B-Instruct": "a public test fixture that leaves out fields it does not read",
    "z-lab/Qwen3.6-35B-A3B-DFlash": (
        "public quotations of its fields; the remaining keys as in z-lab/Qwen3.6-27B-DFlash"
    ),
}

_FORMULA = "The parameter formula gives z-lab/Qwen3.6-35B-A3B-DFlash's published count exactly."
_TRAINING_CONFIG = (
    "SpecForge's training configuration, not a published checkpoint, whose fields may differ. "
    + _FORMULA
)
_COUNT_QUOTED = "Parameter count quoted from the hub, 2026-09-25."
_NO_SKIP_LIST = "modules_to_not_convert is not known and left out."
NOTES = {
    "HyzeAI/Hyze1B": (
        "Looks like a copy of a DFlash drafter for a 27B target, perhaps Qwen3.5-27B (not proven); "
        "all five layers attend fully."
    ),
    "LiquidAI/LFM2-1.2B": "Nearly verbatim. The published model.safetensors is 2.34 GB.",
    "LiquidAI/LFM2-2.6B": "Nearly verbatim.",
    "LiquidAI/LFM2-350M": "Nearly verbatim.",
    "MiniMaxAI/MiniMax-Text-01": "Needs its own configuration code; parameters not stated here.",
    "Qwen/Qwen3-8B": _COUNT_QUOTED,
    "Qwen/Qwen3-Next-80B-A3B-Instruct": (
        "The published count is 79674391296 plus 1650471424 of the prediction layer."
    ),
    "Qwen/Qwen3-Next-80B-A3B-Thinking": "Same configuration as the Instruct model.",
    "Qwen/Qwen3.5-0.8B": (
        f"{_COUNT_QUOTED} It equals the computed count with the prediction layer."
    ),
    "Qwen/Qwen3.5-122B-A10B": (
        "The published count is 122562817776 plus 2523679232 of the prediction layer."
    ),
    "Qwen/Qwen3.5-27B": (
        "26895998464 parameters language, 424699392 prediction layer, 460730096 vision."
    ),
    "Qwen/Qwen3.5-2B": f"{_COUNT_QUOTED} The reconstructed configuration gives it exactly.",
    "Qwen/Qwen3.5-397B-A17B": (
        "396346350336 parameters text, 456010480 vision, 6595568128 prediction layer."
    ),
    "Qwen/Qwen3.5-4B": f"{_COUNT_QUOTED} The reconstructed configuration gives it exactly.",
    "Qwen/Qwen3.5-9B": "The published count equals the computed one with the prediction layer.",
    "Qwen/Qwen3.6-27B": (
        "Text and vision values are those of the published NVFP4 sibling, and the text part equals "
        "Qwen3.8-27B's; transformers_version and the vision model_type are assumed from "
        "Qwen3.6-35B-A3B. The index is of revision 6a9e13bd6fc8f0983b9b99948120bc37f49c13e9, "
        "15 shards."
    ),
    "Qwen/Qwen3.6-27B-FP8": _NO_SKIP_LIST,
    "Qwen/Qwen3.6-35B-A3B": (
        "Also in GitHub yuancaoyaoHW/verl-npu at fbe387e3. 26 shards, 693 text tensors."
    ),
    "Qwen/Qwen3.6-35B-A3B-FP8": _NO_SKIP_LIST,
    "Qwen/Qwen3.8-27B": "The text part is verbatim. 18 shards, 1199 tensors.",
    "ai21labs/Jamba-v0.1": "A Mamba-1 hybrid.",
    "ibm-granite/granite-4.0-h-1b": (
        "The model.safetensors of granite-4.0-h-1b-base, of the same shape, is 2.92 GB."
    ),
    "ibm-granite/granite-4.0-h-small": (
        "Parameter count quoted from the hub and equal to the computed one. "
        "An FP8 variant of 31.19 GiB has been reported."
    ),
    "ibm-granite/granite-4.0-h-tiny": "Safetensors of 12.93 GiB have been reported.",
    "meta-llama/Llama-3.1-8B": _COUNT_QUOTED,
    "moonshotai/Kimi-K3": (
        "KDA with latent attention; quantization is declared inside text_config; "
        "parameters not stated here."
    ),
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": (
        "The count is the computed 49122675072 plus 6656 of e_score_correction_bias. 20 shards."
    ),
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": (
        "Neither this configuration nor a known hf_quant_config.json declares the quantization "
        "that the name states."
    ),
    "nvidia/NVIDIA-Nemotron-Nano-9B-v2": (
        "Parameter count quoted from the hub and equal to the computed one."
    ),
    "nvidia/Nemotron-H-8B-Base-8K": (
        "intermediate_size 21504 was solved from the quoted total of 8100852736 parameters; "
        "check the license with the publisher."
    ),
    "nvidia/Qwen3.6-35B-A3B-NVFP4": "The license stated is the unquantized model's.",
    "sgl-project/SpecForge-qwen3.5-35b-a3b-dflash": _TRAINING_CONFIG,
    "sgl-project/SpecForge-qwen3.5-4b-dflash": _TRAINING_CONFIG,
    "tiiuae/Falcon-H1-0.5B-Instruct": "Nearly verbatim.",
    "tiiuae/Falcon-H1-1.5B-Instruct": "Multipliers are left out, so that class defaults apply.",
    "tiiuae/Falcon-H1-3B-Instruct": (
        "Multipliers are left out; some Falcon-H1 checkpoints have vocab_size 65537."
    ),
    "tiiuae/Falcon-H1-7B-Instruct": "Multipliers are left out.",
    "z-lab/Qwen3-8B-DFlash-b16": (
        f"SpecForge's configuration; its core fields are those quoted of z-lab's. {_FORMULA}"
    ),
    "z-lab/Qwen3.6-27B-DFlash": (
        "SpecForge's configuration for this target; every field quoted of z-lab's (4 layers with a "
        "2048 window and 1 full, block 16, mask 248070, taps 1, 16, 31, 46, 61) is the same. The "
        f"repository is said to be gated; no license seen. {_FORMULA}"
    ),
    "z-lab/Qwen3.6-35B-A3B-DFlash": (
        "The reconstructed configuration gives the published count of 385906176 exactly."
    ),
}

# Models whose notes column has been read, and says nothing to carry over unless NOTES does.
KNOWN = {
    *NOTES,
    "LiquidAI/LFM2-700M",
    "LiquidAI/LFM2-8B-A1B",
    "Qwen/Qwen3.5-35B-A3B",
    "ibm-granite/granite-4.0-h-350m",
    "ibm-granite/granite-4.0-h-micro",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8",
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8",
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4",
    "nvidia/Nemotron-H-56B-Base-8K",
    "nvidia/Qwen3.5-122B-A10B-NVFP4",
    "nvidia/Qwen3.5-397B-A17B-NVFP4",
    "nvidia/Qwen3.6-27B-NVFP4",
    "tiiuae/Falcon-H1-34B-Instruct",
}

if __name__ == "__main__":
    sys.exit(main())
