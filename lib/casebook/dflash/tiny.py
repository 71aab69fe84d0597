"""Tiny targets with random weights, for tests that must take seconds.

They have the real architectures (Qwen3; Qwen3.5 with gated delta-net layers), so what is exact on
them is exact because of the code, not of the weights. ``sharpness`` scales the head so that greedy
choices are clear, as a trained model's are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from casebook.dflash.config import SLIDING, DrafterConfig, default_layer_ids
from casebook.dflash.target import HFTarget

VOCABULARY = 97
MASK_ID = 96
EOS_ID = 1


def tiny_config(
    target_layers: int = 8,
    layers: int = 2,
    block_size: int = 4,
    taps: int = 3,
    window: int | None = None,
    theta: float = 1e7,
    vocabulary: int = VOCABULARY,
    hidden: int = 32,
) -> DrafterConfig:
    """A drafter for a tiny target: own heads, K != L, a theta that is no default."""
    types = [SLIDING] * (layers - 1) + ["full_attention"] if window else []
    return DrafterConfig(
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        target_layer_ids=default_layer_ids(target_layers, taps),
        num_target_layers=target_layers,
        mask_token_id=vocabulary - 1,
        block_size=block_size,
        rope_theta=theta,
        layer_types=tuple(types),  # type: ignore[arg-type]
        sliding_window=window,
        max_position_embeddings=512,
    )


def tiny_qwen3(config: DrafterConfig, seed: int = 0, sharpness: float = 8.0) -> HFTarget:
    """A random Qwen3 with full attention, untied head."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return _made(Qwen3ForCausalLM, Qwen3Config(**_shape(config)), config, seed, sharpness)


def tiny_hybrid(config: DrafterConfig, seed: int = 0, sharpness: float = 8.0) -> HFTarget:
    """A random Qwen3.5 text model: three gated delta-net layers, then one of full attention."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    shape = _shape(config) | {
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "layer_types": [
            "full_attention" if (i + 1) % 4 == 0 else "linear_attention"
            for i in range(config.num_target_layers)
        ],
    }
    return _made(Qwen3_5ForCausalLM, Qwen3_5TextConfig(**shape), config, seed, sharpness)


def _shape(config: DrafterConfig) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": 2 * config.hidden_size,
        "num_hidden_layers": config.num_target_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": EOS_ID,
        "pad_token_id": 0,
    }


def _made(kind: Any, shape: Any, config: DrafterConfig, seed: int, sharpness: float) -> HFTarget:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        shape.initializer_range = 0.15
        model = kind(shape).float()
    with torch.no_grad():
        head = model.get_output_embeddings().weight.mul_(sharpness)
        head[config.mask_token_id] = 0  # a word that no text uses, so it is never the likeliest
    return HFTarget(model, config.target_layer_ids)


TEMPLATE = (
    "{% for m in messages %}<|im_start|> {{ m['role'] }} {{ m['content'].split('</think>')[-1] }} "
    "<|im_end|> {% endfor %}{% if add_generation_prompt %}<|im_start|> assistant "
    "{% if enable_thinking is defined and not enable_thinking %}<think> </think> {% endif %}{% endif %}"
)
"""A chat template with the traits that matter: history loses its thinking, a switch turns it off."""
WORDS = [
    "system",
    "user",
    "assistant",
    "hello",
    "what",
    "is",
    "one",
    "two",
    "three",
    "plus",
    "answer",
    "because",
    "so",
    "yes",
    "no",
    "the",
    "a",
    "of",
]


def tiny_tokenizer(directory: Path) -> Path:
    """Write a word tokenizer with a thinking chat template into ``directory``; ids below 97."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|im_end|>", "<|im_start|>", "<unk>", "<think>", "</think>"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    model = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    model.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="<unk>", pad_token="<|pad|>", eos_token="<|im_end|>"
    )
    made.chat_template = TEMPLATE
    made.save_pretrained(directory)
    return directory
