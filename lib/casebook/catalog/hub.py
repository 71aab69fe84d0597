"""Model configurations laid out as a Hugging Face hub cache, so that names work offline.

SGLang and transformers are asked about ``Qwen/Qwen3.6-27B`` by name and look it up in the hub cache.
A cache with just the JSON files, a ``refs/main`` and a mark for every file known to be absent
answers all of their look-ups at once and without a network (``HF_HUB_CACHE=... HF_HUB_OFFLINE=1``).

Only JSON is ever written, never code: a checkpoint's own Python files are marked absent too.
Writers may run at the same time: each file appears whole by a rename, and what two of them write
is the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from casebook import paths
from casebook.catalog.models import ModelFacts, load_models
from casebook.errors import DataError

_LAYOUT = "2"  # part of every digest: raise it when what is written changes

# Files that some SGLang release or its transformers looks for beside config.json. Marked absent,
# a look-up answers "not there"; unmarked, it answers "cannot say while offline".
PROBED_FILES = (
    "adapter_config.json",
    "added_tokens.json",
    "audio_tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "config_sentence_transformers.json",
    "consolidated.safetensors",
    "consolidated.safetensors.index.json",
    "decision_config.json",
    "head.pt",
    "hf_quant_config.json",
    "image_processor_config.json",
    "joint_head_config.json",
    "merges.txt",
    "model.safetensors",
    "model.safetensors.index.json",
    "model_index.json",
    "modules.json",
    "params.json",
    "preprocessor_config.json",
    "processor_config.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "quant_config.json",
    "quant_model_description.json",
    "quantization_config.json",
    "quantize_config.json",
    "sentencepiece.bpe.model",
    "sparse_attention_config.json",
    "special_tokens_map.json",
    "spiece.model",
    "SYSTEM_PROMPT.txt",
    "tekken.json",
    "tiktoken.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "video_preprocessor_config.json",
    "vocab.json",
    "vocab.txt",
)

_REPO_ID = re.compile(r"(?:[A-Za-z0-9_][\w.-]*/)?[A-Za-z0-9_][\w.-]*", re.ASCII)
_MODULE = re.compile(r"(?:.*--)?([A-Za-z_]\w*)\.[A-Za-z_]\w*", re.ASCII)


def revision(facts: ModelFacts) -> str:
    """The commit name under which the model's files lie: 40 hex digits that follow from them."""
    return hashlib.sha1(_contents(facts)).hexdigest()


def materialise_hub(models: Iterable[ModelFacts], root: Path) -> None:
    """Write the models into the hub cache ``root``, beside what is there already."""
    for facts in models:
        if not _REPO_ID.fullmatch(facts.name) or ".." in facts.name or "--" in facts.name:
            raise DataError(
                f"The model name {facts.name!r} cannot be a hub repository; "
                "use ORGANIZATION/NAME of letters, digits, '-', '_' and '.'."
            )
        repo = root / f"models--{facts.name.replace('/', '--')}"
        commit = revision(facts)
        files = _files(facts)
        for name, text in files.items():
            _write(repo / "snapshots" / commit / name, text, scratch=root)
        for name in sorted({*PROBED_FILES, *_code_files(facts)} - set(files)):
            _write(repo / ".no_exist" / commit / name, "", scratch=root)
        _write(repo / "refs" / "main", commit, scratch=root)


def hub_for_catalog() -> Path:
    """The hub cache of all models of the catalog, built on first use and shared from then on."""
    models = list(load_models().values())
    parts = [_LAYOUT, *PROBED_FILES]
    parts += [f"{facts.name} {revision(facts)}" for facts in models]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    parent = paths.cache_dir() / "hub"
    done = parent / digest
    if done.is_dir():
        return done
    parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=parent))
    try:
        building.chmod(0o755)
        materialise_hub(models, building)
        building.rename(done)
    except OSError:
        if not done.is_dir():  # otherwise another process was first, with the same contents
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return done


def materialise_checkpoint(facts: ModelFacts, directory: Path) -> None:
    """Write the model's JSON files into a plain directory, as a stand-in for its checkpoint."""
    files = _files(facts)
    stale = directory / "hf_quant_config.json"
    if stale.name not in files and stale.exists():
        raise DataError(
            f"{stale} belongs to another model than {facts.name}; give a new directory."
        )
    for name, text in files.items():
        _write(directory / name, text, scratch=directory)


def _files(facts: ModelFacts) -> dict[str, str]:
    # Every published checkpoint has a generation configuration, and several releases warn if there is
    # none. What it holds concerns sampling and no argument of the server, so an empty one stands in.
    config = json.dumps(facts.config(), indent=2) + "\n"
    files = {"config.json": config, "generation_config.json": "{}\n"}
    quant = facts.hf_quant_config()
    if quant is not None:
        files["hf_quant_config.json"] = json.dumps(quant, indent=2) + "\n"
    return files


def _contents(facts: ModelFacts) -> bytes:
    return json.dumps([_LAYOUT, _files(facts)], sort_keys=True).encode()


def _code_files(facts: ModelFacts) -> set[str]:
    """The Python files that the configuration refers to, which are never provided."""
    found = set()
    for holder in (facts.config(), facts.text_config()):
        auto_map = holder.get("auto_map")
        for target in auto_map.values() if isinstance(auto_map, dict) else ():
            module = _MODULE.fullmatch(target) if isinstance(target, str) else None
            if module:
                found.add(f"{module[1]}.py")
    return found


def _write(path: Path, text: str, *, scratch: Path) -> None:
    """Make ``path`` hold ``text``, at no time less than whole."""
    data = text.encode()
    try:
        if path.read_bytes() == data:
            return
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    # The temporary file lies outside the folders that readers list.
    handle, temporary = tempfile.mkstemp(prefix=".writing-", dir=scratch)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
