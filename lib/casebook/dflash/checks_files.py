"""The checks that need a drafter's files only: its configuration, its tensors' names, its launch.

The serving checks ask the release of SGLang itself (:mod:`casebook.dflash.serving`).
"""

from __future__ import annotations

from typing import Any

import torch

from casebook.dflash import serving
from casebook.dflash.bench import Given
from casebook.dflash.checkpoint import missing_and_ignored
from casebook.dflash.checks_base import Finding, failed, on_files, passed, skipped, verdict
from casebook.dflash.config import DrafterConfig, rope_theta_of
from casebook.dflash.errors import DrafterError, StoreError
from casebook.dflash.hidden import HiddenStore
from casebook.dflash.launched import ServeSettings
from casebook.dflash.rope import inverse_frequencies

ROPE_KEYS_OF_TARGETS = (
    "partial_rotary_factor",
    "mrope_section",
    "mrope_interleaved",
    "rope_interleave",
)
_NEEDS_RELEASE = "no SGLang release named"


def text_config(target: Any) -> dict[str, Any]:
    """The language model's part of a target's configuration."""
    inner = target.get("text_config")
    return dict(inner) if isinstance(inner, dict) else dict(target)


def _parsed(given: Given) -> DrafterConfig | Finding:
    try:
        return DrafterConfig.from_json(given.config)
    except DrafterError as error:
        return failed(str(error))


def _asked(given: Given) -> serving.Served | Finding:
    if given.release is None:
        return skipped(_NEEDS_RELEASE)
    served = serving.ask(given.release, dict(given.config), dict(given.tensors or {}))
    return (
        failed(f"SGLang {given.release} refuses it: {served.refused}") if served.refused else served
    )


@on_files(
    8,
    "the rope base is served as trained",
    "A base ten times too small turns every distance wrong; the server says nothing.",
    "https://github.com/sgl-project/sglang/pull/27477",
)
def rope_base(given: Given) -> Finding:
    """The base the release's own code builds its rotation with, against the trained one."""
    try:
        written = rope_theta_of(given.config)
    except DrafterError as error:
        return failed(str(error))
    trained = given.trained.rope_theta if given.trained else written
    bases = {"the file": written}
    if given.release:
        served = _asked(given)
        if isinstance(served, Finding):
            return served
        bases[f"SGLang {given.release}"] = served.rope_theta or 0.0
    dim = int(given.config.get("head_dim", 128))
    wanted = inverse_frequencies(dim, trained)
    for who, base in bases.items():
        if not torch.equal(inverse_frequencies(dim, base), wanted):
            return failed(f"trained with base {trained:g}, {who} has {base:g}")
    return passed(f"base {trained:g} in " + " and ".join(bases))


@on_files(
    9,
    "no partial or multimodal rope in the drafter",
    "Copied from a Qwen3.5 target, a factor of 0.25 brings the acceptance length from 4 to 1.04.",
    "https://github.com/vllm-project/speculators/issues/613",
)
def rope_keys(given: Given) -> Finding:
    """No such key at the top level or among the rope parameters."""
    found = [k for k in ROPE_KEYS_OF_TARGETS if given.config.get(k) is not None]
    for home in ("rope_parameters", "rope_scaling"):
        inner = given.config.get(home) or {}
        found += [f"{home}.{k}" for k in ROPE_KEYS_OF_TARGETS if inner.get(k) is not None]
    return verdict(not found, f"found {', '.join(found)}" if found else "none of these keys")


@on_files(
    12,
    "taps and widths fit the target",
    "The last layer cannot be captured; a wrong width raises at load, a permutation does not.",
    "https://github.com/vllm-project/speculators/issues/705",
)
def taps_fit(given: Given) -> Finding:
    """Taps unique, increasing, below the last layer; fc and hidden sizes as the target's."""
    config = _parsed(given)
    if isinstance(config, Finding):
        return config
    if given.trained and config.target_layer_ids != given.trained.target_layer_ids:
        return failed(
            f"taps {list(config.target_layer_ids)} were trained as {list(given.trained.target_layer_ids)}"
        )
    if given.tensors and "fc.weight" in given.tensors:
        shape = given.tensors["fc.weight"].shape
        if shape != (config.hidden_size, config.context_width):
            return failed(
                f"fc.weight is {list(shape)}, wanted {[config.hidden_size, config.context_width]}"
            )
    if given.target is not None:
        text = text_config(given.target)
        for ours, theirs in (
            ("hidden_size", "hidden_size"),
            ("num_target_layers", "num_hidden_layers"),
        ):
            if text.get(theirs) != getattr(config, ours):
                return failed(
                    f"{ours} is {getattr(config, ours)}, the target has {text.get(theirs)}"
                )
    return passed(f"taps {list(config.target_layer_ids)} of {config.num_target_layers} layers")


@on_files(
    22,
    "the mask id is a word of its own",
    "A pad or end token as mask erodes acceptance silently; another id than the trained one breaks it.",
    "https://github.com/NVIDIA-NeMo/Automodel/pull/2461",
)
def mask_id(given: Given) -> Finding:
    """In the vocabulary, no special token, in no training text, the trained one, and the served one."""
    inner = given.config.get("dflash_config") or {}
    mask = inner.get("mask_token_id")
    if not isinstance(mask, int):
        return failed("dflash_config names no mask_token_id, so SGLang adds a new word")
    if given.trained and mask != given.trained.mask_token_id:
        return failed(f"trained with {given.trained.mask_token_id}, the file says {mask}")
    if given.text_ids is not None and mask in given.text_ids:
        return failed(f"token {mask} occurs in the training text")
    if given.target is not None:
        text = text_config(given.target)
        if not 0 <= mask < int(text.get("vocab_size", 0)):
            return failed(f"token {mask} is outside the target's {text.get('vocab_size')} words")
        for name in ("pad_token_id", "eos_token_id", "bos_token_id"):
            ids = text.get(name, given.target.get(name))
            if mask in (ids if isinstance(ids, list) else [ids]):
                return failed(f"token {mask} is the target's {name}")
    return passed(f"token {mask}")


@on_files(
    23,
    "the loss mask covers what the target said",
    "A template whose header is not found leaves zero supervised tokens; user text must not be learnt.",
    "https://github.com/z-lab/dflash/issues/133",
)
def supervised_share(given: Given) -> Finding:
    """A store of tokens supervises some of each text, and not all of it."""
    if given.supervised is None:
        return skipped("no store of tokens")
    learnt, total = given.supervised
    detail = f"{learnt:,} of {total:,} tokens are supervised"
    return verdict(0 < learnt < total, detail)


@on_files(
    24,
    "one block size everywhere",
    "SGLang only warns where launch and checkpoint differ, and serves fewer accepted tokens.",
    "SGLang 0.5.11 srt/speculative/dflash_worker.py; vLLM's num_speculative_tokens is B - 1",
)
def block_sizes(given: Given) -> Finding:
    """Trained, top level, ``dflash_config`` and ``--speculative-num-draft-tokens`` agree."""
    inner = given.config.get("dflash_config") or {}
    found = {
        "trained": given.trained.block_size if given.trained else None,
        "config.json": given.config.get("block_size"),
        "dflash_config": inner.get("block_size"),
        "launch": given.launch.draft_tokens,
    }
    named = {k: v for k, v in found.items() if v is not None}
    return verdict(len(set(named.values())) == 1, ", ".join(f"{k} {v}" for k, v in named.items()))


@on_files(
    25,
    "every tensor finds its place in SGLang",
    "SGLang skips unknown names and misses no absent one: random weights are served without a word.",
    "SGLang srt/models/dflash.py load_weights, 0.5.11 to 0.5.23",
)
def tensor_names(given: Given) -> Finding:
    """The release's own ``load_weights`` (or its rule): nothing missing, nothing ignored."""
    if given.tensors is None:
        return skipped("no weights beside the configuration")
    config = _parsed(given)
    if isinstance(config, Finding):
        return config
    missing, ignored = missing_and_ignored(given.tensors, config)
    who = "by the rule of SGLang's loader"
    if given.release and not missing and not ignored:
        served = _asked(given)
        if isinstance(served, Finding):
            return served
        missing, ignored, who = served.missing, served.ignored, f"by SGLang {given.release} itself"
    if missing or ignored:
        first = (ignored or missing)[0]
        return failed(f"{len(ignored)} ignored, {len(missing)} missing {who}, such as {first}")
    return passed(f"{len(given.tensors)} tensors placed {who}")


@on_files(
    26,
    "the release serves the layers as trained",
    "Releases differ in which keys they need and which they ignore: windows, rope base, layer count.",
    "SGLang 0.5.11 to 0.5.23 srt/speculative/dflash_utils.py; https://github.com/z-lab/dflash/issues/126",
)
def release_serves(given: Given) -> Finding:
    """The release's own class: not refused, same windows and order, same block, mask and width."""
    config = _parsed(given)
    if isinstance(config, Finding):
        return config
    if "DFlashDraftModel" not in given.config.get("architectures", ()):
        return failed(
            "architectures does not name DFlashDraftModel, by which SGLang picks the class"
        )
    served = _asked(given)
    if isinstance(served, Finding):
        return served
    trained = given.trained or config
    wanted = trained.windows()
    got = served.windows or (None,) * len(wanted)
    if got != wanted:
        return failed(f"SGLang {served.release} serves windows {list(got)}, trained {list(wanted)}")
    causal = tuple(w is not None for w in wanted)
    if served.causal and served.causal != causal:
        return failed(f"SGLang {served.release} serves causal layers {list(served.causal)}")
    facts = {
        "block size": (served.block_size, trained.block_size),
        "mask id": (served.mask_token_id, trained.mask_token_id),
        "taps": (served.taps, trained.taps),
        "rotary width": (served.rotary_dim, trained.head_dim),
    }
    wrong = [f"{k} {a}, trained {b}" for k, (a, b) in facts.items() if a != b]
    wrong += [] if served.neox else ["interleaved rotary layout, trained neox"]
    wrong += _cut_wrongly(config, given.launch)
    return verdict(not wrong, "; ".join(wrong) or f"SGLang {served.release} serves it as trained")


def _cut_wrongly(config: DrafterConfig, launch: ServeSettings) -> list[str]:
    """What SGLang's ``srt/models/dflash.py`` asserts of the heads, and its worker of ``--pp-size``."""
    heads, groups, tp = config.num_attention_heads, config.num_key_value_heads, launch.tp
    wrong = []
    if heads % tp:
        wrong.append(f"{heads} query heads over --tp-size {tp}")
    if groups % tp and tp % groups:
        wrong.append(f"{groups} key heads over --tp-size {tp}")
    if launch.pp > 1:
        wrong.append(f"--pp-size {launch.pp}, a drafter is served on 1 only")
    return wrong


@on_files(
    31,
    "the store of hidden states is whole",
    "A prefix cache hit skips rows; a copied store ends early; states of other layers look the same.",
    "https://github.com/vllm-project/vllm/issues/44485",
)
def store_whole(given: Given) -> Finding:
    """Opened with all its refusals: rows, layers, lengths, checksums."""
    if given.store is None:
        return skipped("no store of hidden states")
    config = _parsed(given)
    if isinstance(config, Finding):
        return config
    try:
        store = HiddenStore(given.store, config)
    except StoreError as error:
        return failed(str(error))
    return passed(f"{len(store)} samples")


@on_files(
    32,
    "served lengths were trained",
    "Acceptance fell from 73 % to 13 % at 16K tokens where training ended at less.",
    "https://github.com/spiritbuun/buun-llama-cpp/issues/32",
)
def lengths(given: Given) -> Finding:
    """The served context is no longer than the longest training sample."""
    if given.training_length is None or given.launch.context_length is None:
        return skipped("training length or served context length is not known")
    trained, served = given.training_length, given.launch.context_length
    limit = int(given.config.get("max_position_embeddings", served))
    if served > limit:
        return failed(f"serves {served} tokens, the drafter's positions end at {limit}")
    return verdict(served <= trained, f"trained to {trained} tokens, serves {served}")
