"""What is known of each model: its configuration, its size, and where those facts come from.

SGLang decides from a model's ``config.json`` whether it is a hybrid, how large its state is and how
it is quantized. ``data/models/`` holds these files' facts, one TOML file a model in the form of
:mod:`casebook.catalog.compact`, so that any listed model can be asked about offline;
:func:`read_checkpoint` takes the same facts from a checkpoint directory of the user's own.

An architecture that casebook does not know is no error here: SGLang itself will say what it makes
of it. The few derived facts (family, layer counts) are for tables and prose, not for decisions.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from casebook import paths
from casebook.catalog.compact import CompactPaths, unpack
from casebook.errors import DataError, ModelConfigError, UnknownModelError

Status = Literal["verbatim", "reconstructed", "local"]
LayerKind = Literal["state", "attention", "both", "other"]

_STATE_LAYERS = {"linear_attention", "mamba", "mamba2", "conv", "kda", "lightning_attention"}
_ATTENTION_LAYERS = {"attention", "full_attention", "sliding_attention", "chunked_attention"}
_EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
_HINT = "Give a local checkpoint directory, or add data/models/<name>.toml."


class ModelFacts(BaseModel):
    """One model. Byte counts are of the checkpoint's tensors as stored, on all ranks together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    aliases: tuple[str, ...] = ()
    parameters: int | None = Field(default=None, gt=0)
    parameters_note: str = ""
    """How the count was made, if it was computed and not read from the checkpoint."""
    checkpoint_bytes: int | None = Field(default=None, gt=0)
    checkpoint_bytes_exact: bool = False
    """Whether the bytes were read from the checkpoint, its index or its tensors' listing."""
    checkpoint_bytes_note: str = ""
    status: Status
    """``verbatim``: the published file; ``reconstructed``: put together from several sources;
    ``local``: read from a directory."""
    license: str = ""
    source: str
    notes: str = ""
    directory: Path | None = None
    """Where a local checkpoint lies; None for a model of the catalog."""
    config_json: str = Field(repr=False)
    hf_quant_config_json: str | None = Field(default=None, repr=False)

    def config(self) -> dict[str, Any]:
        """The ``config.json``, as a new object."""
        return json.loads(self.config_json)

    def hf_quant_config(self) -> dict[str, Any] | None:
        """The ``hf_quant_config.json`` as a new object, or None where the checkpoint has none."""
        return json.loads(self.hf_quant_config_json) if self.hf_quant_config_json else None

    def text_config(self) -> dict[str, Any]:
        """The part of the configuration that describes the language model."""
        config = self.config()
        text = config.get("text_config")
        return text if isinstance(text, dict) else config

    def without_own_code(self) -> ModelFacts:
        """The same facts without ``auto_map``, which names Python files of the checkpoint's own."""
        config = self.config()
        config.pop("auto_map", None)
        return self.model_copy(update={"config_json": json.dumps(config)})

    @property
    def short_name(self) -> str:
        """The name without its organization."""
        return self.name.rsplit("/", 1)[-1]

    @property
    def architecture(self) -> str:
        """The first entry of ``architectures``, by which SGLang picks the model class."""
        return self.config()["architectures"][0]

    @property
    def family(self) -> str:
        """The kind of layers that makes the model what it is, e.g. ``GDN`` or ``Mamba2``."""
        return _family(self.config(), self.text_config())

    @property
    def is_moe(self) -> bool:
        """Whether the feed-forward layers have routed experts."""
        return _is_moe(self.text_config())

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Per decoder layer: keeps a recurrent or convolution state, a KV cache, both or neither."""
        return _layer_kinds(self.text_config())

    @property
    def layers(self) -> int:
        """Decoder layers as the configuration counts them (prediction layers not included)."""
        return len(self.layer_kinds)

    @property
    def state_layers(self) -> int:
        """Layers that keep a recurrent or convolution state for each request."""
        return sum(kind in ("state", "both") for kind in self.layer_kinds)

    @property
    def attention_layers(self) -> int:
        """Layers that keep a KV cache."""
        return sum(kind in ("attention", "both") for kind in self.layer_kinds)

    @property
    def is_hybrid(self) -> bool:
        """Whether any layer keeps state, which is what gives SGLang a Mamba pool to size."""
        return self.state_layers > 0

    @property
    def quantization(self) -> str | None:
        """How the checkpoint says it is quantized, e.g. ``modelopt NVFP4``; None if it does not."""
        config = self.config()
        for holder in (config, self.text_config()):
            quant = holder.get("quantization_config")
            if isinstance(quant, dict):
                said = (quant.get("quant_method"), quant.get("quant_algo"))
                return " ".join(str(s) for s in said if s) or "unnamed"
        quant = (self.hf_quant_config() or {}).get("quantization")
        if isinstance(quant, dict) and quant.get("quant_algo"):
            return f"modelopt {quant['quant_algo']}"
        return None


# --- the catalog --------------------------------------------------------------------------------


def load_models() -> Mapping[str, ModelFacts]:
    """All models of ``data/models/`` by full name, in the order of their names."""
    return _load(paths.data_dir() / "models")[0]


def model(name: str) -> ModelFacts:
    """The model of that full name or alias, ignoring case."""
    models, by_any_name = _load(paths.data_dir() / "models")
    full_name = by_any_name.get(name.strip().casefold())
    if full_name is not None:
        return models[full_name]
    known = models if "/" in name else [m.short_name for m in models.values()]
    raise UnknownModelError("model", name, known, _HINT)


def models_table(models: Iterable[ModelFacts] | None = None) -> pd.DataFrame:
    """One row a model (all of the catalog by default)."""
    rows = []
    for facts in load_models().values() if models is None else models:
        text = facts.text_config()
        rows.append(
            {
                "model": facts.name,
                "family": facts.family,
                "moe": facts.is_moe,
                "layers": facts.layers,
                "state_layers": facts.state_layers,
                "attention_layers": facts.attention_layers,
                "parameters": facts.parameters,
                "checkpoint_bytes": facts.checkpoint_bytes,
                "checkpoint_bytes_exact": facts.checkpoint_bytes_exact,
                "quantization": facts.quantization or "",
                "context_tokens": _count(
                    text.get("max_position_embeddings", text.get("model_max_length"))
                ),
                "architecture": facts.architecture,
                "status": facts.status,
            }
        )
    columns = [
        "model",
        "family",
        "moe",
        "layers",
        "state_layers",
        "attention_layers",
        "parameters",
        "checkpoint_bytes",
        "checkpoint_bytes_exact",
        "quantization",
        "context_tokens",
        "architecture",
        "status",
    ]
    table = pd.DataFrame(rows, columns=columns)
    whole = ["layers", "state_layers", "attention_layers", "parameters", "checkpoint_bytes"]
    return table.astype(dict.fromkeys([*whole, "context_tokens"], "Int64"))


def _load(folder: Path) -> tuple[Mapping[str, ModelFacts], Mapping[str, str]]:
    files: list[tuple[str, os.stat_result]] = []
    try:
        if folder.is_dir():
            with os.scandir(folder) as entries:  # asked for each launch: a Path each costs more
                files = sorted((e.path, e.stat()) for e in entries if e.name.endswith(".toml"))
    except OSError as error:
        raise DataError(
            f"Cannot read {error.filename or folder}: {error.strerror}; restore it, or remove it."
        ) from error
    if not files:
        raise DataError(f"No model files (*.toml) in {folder}; restore data/ from the repository.")
    return _load_files(tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in files))


@lru_cache(maxsize=4)
def _load_files(
    stamps: tuple[tuple[str, int, int], ...],
) -> tuple[Mapping[str, ModelFacts], Mapping[str, str]]:
    models: dict[str, ModelFacts] = {}
    by_any_name: dict[str, str] = {}
    for path, _, _ in stamps:
        facts = read_model_file(Path(path))
        for key in {n.casefold() for n in (facts.name, *facts.aliases)}:
            if key in by_any_name:
                raise DataError(
                    f"{path} uses the model name {key!r}, which {by_any_name[key]} has already; "
                    "rename one of them."
                )
            by_any_name[key] = facts.name
        models[facts.name] = facts
    return dict(sorted(models.items(), key=lambda item: item[0].casefold())), by_any_name


def read_model_file(path: Path) -> ModelFacts:
    """The facts in one file of ``data/models/``."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as TOML ({error}); correct or remove it."
        ) from error
    try:
        compact = CompactPaths.model_validate(data.pop("compact", {}))
        packed: dict[str, Any] = {
            key: data.pop(key) for key in ("config", "hf_quant_config") if key in data
        }
        documents = unpack(packed, compact)
        fault = _config_fault(documents.get("config"))
        if fault:
            raise ValueError(f"config {fault}")
        quant = documents.get("hf_quant_config")
        return ModelFacts(
            **data,
            config_json=json.dumps(documents["config"]),
            hf_quant_config_json=None if quant is None else json.dumps(quant),
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        raise DataError(f"{path} has a wrong {where!r}: {first['msg']}; correct it.") from error
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is not a model description: {error}; correct it.") from error


# --- a local checkpoint -------------------------------------------------------------------------


def read_checkpoint(path: Path) -> ModelFacts:
    """The facts of a checkpoint directory: its JSON files, and the size of its weights if there.

    ``checkpoint_bytes`` sums the sizes of the ``*.safetensors`` files, headers included.
    """
    if not path.is_dir():
        kind = "is not a directory" if path.exists() else "does not exist"
        raise ModelConfigError(
            f"The checkpoint {path} {kind}; give the directory that holds its config.json."
        )
    config = _read_json_object(path / "config.json", required=True)
    fault = _config_fault(config)
    if fault:
        raise ModelConfigError(
            f"{path / 'config.json'} {fault}; give the checkpoint's own model configuration."
        )
    quant = _read_json_object(path / "hf_quant_config.json", required=False)
    try:
        sizes = [shard.stat().st_size for shard in path.glob("*.safetensors")]
    except OSError as error:
        raise ModelConfigError(
            f"Cannot read the size of {error.filename} ({error.strerror}); "
            "repair the link or remove the file."
        ) from error
    directory = path.resolve()
    return ModelFacts(
        name=directory.name or "checkpoint",
        checkpoint_bytes=sum(sizes) or None,
        checkpoint_bytes_exact=sum(sizes) > 0,
        checkpoint_bytes_note=f"sizes of {len(sizes)} safetensors files" if sizes else "",
        status="local",
        source=f"local checkpoint {path}",
        directory=directory,
        config_json=json.dumps(config),
        hf_quant_config_json=None if quant is None else json.dumps(quant),
    )


def _read_json_object(path: Path, *, required: bool) -> dict[str, Any] | None:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        if not required and not path.is_symlink():
            return None
        raise ModelConfigError(
            f"There is no {path.name} in {path.parent}; give a checkpoint directory that has one."
        ) from error
    except UnicodeDecodeError as error:
        raise ModelConfigError(
            f"{path} is not UTF-8 text (byte {error.start}); download the file again."
        ) from error
    except OSError as error:
        raise ModelConfigError(
            f"{path} cannot be read ({error.strerror}); check the file and its permissions."
        ) from error
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        what = "ends too early" if error.pos >= len(text.rstrip()) else "is not valid JSON"
        raise ModelConfigError(
            f"{path} {what} at line {error.lineno}, column {error.colno} ({error.msg}); "
            "download the file again."
        ) from error
    except (ValueError, RecursionError) as error:
        raise ModelConfigError(
            f"{path} holds JSON that cannot be read ({error}); download the file again."
        ) from error
    if not isinstance(value, dict):
        raise ModelConfigError(
            f"{path} holds a JSON {_json_kind(value)} where an object is needed; "
            f"give the checkpoint's own {path.name}."
        )
    return value


def _config_fault(config: Any) -> str | None:
    """What keeps ``config`` from being a model configuration, as the end of a sentence."""
    if not isinstance(config, dict):
        return "is missing"
    named = config.get("architectures")
    if not isinstance(named, list) or not named or not all(isinstance(a, str) for a in named):
        return 'has no "architectures" list that names the model class'
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        return 'has no "model_type" text that names the kind of model'
    return None


def _json_kind(value: Any) -> str:
    kinds = {bool: "true or false", list: "list", str: "string", int: "number", float: "number"}
    return kinds.get(type(value), "null")


# --- derived facts ------------------------------------------------------------------------------


def _count(value: Any) -> int | None:
    """``value`` if it is a usable count; configurations of strangers may hold anything."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value >= 0 else None


def _is_moe(text: dict[str, Any]) -> bool:
    if "E" in str(text.get("hybrid_override_pattern", "")):
        return True
    return any((_count(text.get(key)) or 0) > 1 for key in _EXPERT_COUNTS)


def _family(config: dict[str, Any], text: dict[str, Any]) -> str:
    if str(config["architectures"][0]).startswith("DFlash") or "dflash_config" in config:
        return "DFlash drafter"
    if isinstance(text.get("linear_attn_config"), dict):
        return "KDA"
    if "linear_num_value_heads" in text:
        return "GDN"
    if "conv_L_cache" in text:
        return "short conv"
    if "attn_type_list" in text:
        return "lightning"
    if "mamba_num_heads" in text or "mamba_n_heads" in text:
        return "Mamba2"
    if "mamba_d_state" in text:
        return "Mamba1"
    return "MoE attention" if _is_moe(text) else "dense attention"


def _layer_kinds(text: dict[str, Any]) -> tuple[LayerKind, ...]:
    for key in ("layer_types", "layers_block_type"):
        if isinstance(text.get(key), list):
            return tuple(_kind(str(name)) for name in text[key])
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        letters: dict[str, LayerKind] = {"M": "state", "*": "attention"}
        return tuple(letters.get(letter, "other") for letter in pattern)
    if isinstance(text.get("attn_type_list"), list):
        return tuple(map(_attention_if, (each == 1 for each in text["attn_type_list"])))
    count = min(_count(text.get("num_hidden_layers")) or 0, 100_000)
    linear = text.get("linear_attn_config")
    if isinstance(linear, dict) and isinstance(linear.get("kda_layers"), list):
        of_state = {n - 1 for n in linear["kda_layers"] if isinstance(n, int)}
        return tuple(_attention_if(i not in of_state) for i in range(count))
    if isinstance(text.get("full_attn_idxs"), list):
        return tuple(_attention_if(i in text["full_attn_idxs"]) for i in range(count))
    if "mamba_d_ssm" in text:  # Falcon-H1 runs both mixers side by side in every layer
        return _every("both", count)
    interval = _count(text.get("full_attention_interval"))
    if interval and "linear_num_value_heads" in text:
        return tuple(_attention_if((i + 1) % interval == 0) for i in range(count))
    period, offset = _count(text.get("attn_layer_period")), _count(text.get("attn_layer_offset"))
    if period and offset is not None:
        return tuple(_attention_if(i % period == offset) for i in range(count))
    return _every("attention", count)


def _every(kind: LayerKind, count: int) -> tuple[LayerKind, ...]:
    return (kind,) * count


def _attention_if(condition: bool) -> LayerKind:
    return "attention" if condition else "state"


def _kind(name: str) -> LayerKind:
    if name in _STATE_LAYERS:
        return "state"
    return "attention" if name in _ATTENTION_LAYERS else "other"
