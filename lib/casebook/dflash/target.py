"""The frozen target: its hidden states, its verification of a block, and the way back after a rejection.

Any causal language model of transformers will do. An attention layer's cache is rolled back by
cutting it; a recurrent layer's cannot be, for each token overwrites the state. There the state is
copied before the block and the accepted tokens are run again (transformers 5.24 either refuses
``crop`` on such caches or leaves the state unrewound, so it is not used).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from casebook.dflash.config import DrafterConfig
from casebook.dflash.errors import TargetError


@runtime_checkable
class HiddenSource(Protocol):
    """Whoever can answer "the hidden states of these tokens": a local model, or a serving engine.

    An SGLang engine implements it by returning its captured states: layer ids as here (after layer
    l, 0-based), one row a token, prefix cache off or a key of its own per request, since a cache
    hit skips the prefill and with it the rows.
    """

    layer_ids: tuple[int, ...]
    hidden_size: int

    def capture(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """``[b, S]`` token ids to ``[b, S, K*H]`` hidden states in ``layer_ids`` order."""
        ...


class HFTarget:
    """A transformers causal language model as a drafter's target. It is frozen and in eval mode."""

    def __init__(self, model: Any, layer_ids: Sequence[int]) -> None:
        self.model = model.eval().requires_grad_(False)
        self.layer_ids = tuple(layer_ids)
        self.text_config = model.config.get_text_config()
        self.hidden_size = int(self.text_config.hidden_size)
        self.layers = decoder_layers(model)
        top = len(self.layers) - 1
        bad = [i for i in self.layer_ids if not 0 <= i < top]
        if bad:
            raise TargetError(
                f"The target has {len(self.layers)} layers, so taps must lie in 0..{top - 1}; got {bad}."
            )
        self._taken: dict[int, Tensor] = {}
        # transformers 5 renames the argument; the old name goes in 5.40.
        known = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in known else "past_key_values"

    @property
    def vocab_size(self) -> int:
        """Rows of the head."""
        return int(self.head.shape[0])

    @property
    def embedding(self) -> nn.Module:
        """The input embedding, scaling included where the model scales."""
        return self.model.get_input_embeddings()

    @property
    def head(self) -> Tensor:
        """The output head's weight ``[V, H]`` (the embedding's own where they are tied)."""
        head = self.model.get_output_embeddings()
        if head is None:
            raise TargetError("The target has no output head; give a causal language model.")
        if getattr(head, "bias", None) is not None:
            raise TargetError("The target's head has a bias, which a DFlash drafter cannot use.")
        return head.weight

    @property
    def hybrid(self) -> bool:
        """Whether some layer keeps a state that a block overwrites."""
        return any(
            t == "linear_attention" for t in getattr(self.text_config, "layer_types", None) or ()
        )

    def suits(self, config: DrafterConfig) -> None:
        """Refuse a drafter that was made for another target, with the reason."""
        if config.hidden_size != self.hidden_size:
            raise TargetError(
                f"The drafter's hidden size is {config.hidden_size}, the target's {self.hidden_size}; "
                "embedding, head and fc need them equal."
            )
        if config.num_target_layers != len(self.layers):
            raise TargetError(
                f"The drafter is made for {config.num_target_layers} target layers, "
                f"this target has {len(self.layers)}."
            )
        if config.target_layer_ids != self.layer_ids:
            raise TargetError(
                f"The drafter listens to layers {list(config.target_layer_ids)}, "
                f"the hidden states are of layers {list(self.layer_ids)}."
            )
        if config.mask_token_id >= self.embedding.num_embeddings:  # type: ignore[operator]
            raise TargetError(
                f"The mask id {config.mask_token_id} is outside the target's vocabulary of "
                f"{self.embedding.num_embeddings} rows."
            )

    @contextmanager
    def _listening(self) -> Iterator[None]:
        def keep(index: int) -> Any:
            def hook(_module: nn.Module, _args: Any, output: Any) -> None:
                self._taken[index] = output[0] if isinstance(output, tuple) else output

            return hook

        handles = [self.layers[i].register_forward_hook(keep(i)) for i in self.layer_ids]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._taken.clear()

    def _hidden(self) -> Tensor:
        return torch.cat([self._taken[i] for i in self.layer_ids], dim=-1)

    @torch.no_grad()
    def capture(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """The taps of whole sequences, ``[b, S]`` to ``[b, S, K*H]``, in one pass without a cache.

        Rows are padded on the right: causal layers and a recurrent state then never see padding
        before text, so no mask is needed. One document a row: packing leaks through a hybrid's state.
        """
        with self._listening():
            decoder(self.model)(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
            return self._hidden()

    @torch.no_grad()
    def step(self, input_ids: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """Run ``[1, n]`` tokens behind ``cache``: logits ``[1, n, V]`` and taps ``[1, n, K*H]``."""
        with self._listening():
            out = self.model(input_ids=input_ids, use_cache=True, **{self._cache_name: cache})
            return out.logits, self._hidden()

    def new_cache(self) -> Any:
        """An empty cache of the kind this model wants."""
        from transformers import DynamicCache

        return DynamicCache(config=self.text_config)


class Rollback:
    """Remembers a cache before a block, and takes it back to that point plus some tokens."""

    def __init__(self, target: HFTarget, cache: Any) -> None:
        self.target, self.cache = target, cache
        self.simple = all(type(layer).__name__ == "DynamicLayer" for layer in cache.layers)
        self.length = cache.get_seq_length()
        self._states = None if self.simple else [_copied(vars(layer)) for layer in cache.layers]

    def keep(self, tokens: Tensor) -> None:
        """Make the cache hold what it held, plus ``tokens`` ``[1, n]``, the accepted start of the block."""
        surplus = self.cache.get_seq_length() - self.length - tokens.shape[1]
        if surplus == 0:
            return
        if self._states is None:
            self.cache.crop(-surplus)
            return
        for layer, state in zip(self.cache.layers, self._states, strict=True):
            vars(layer).clear()
            vars(layer).update(_copied(state))
        self.target.step(tokens, self.cache)


def _copied(value: Any) -> Any:
    """A copy of a cache layer's fields; tensors are cloned, for recurrent layers write in place."""
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return value


def decoder(model: Any) -> Any:
    """The model without its head."""
    return model.get_decoder() if hasattr(model, "get_decoder") else model.model


def decoder_layers(model: Any) -> nn.ModuleList:
    """The list of decoder layers, found by its name and length."""
    wanted = model.config.get_text_config().num_hidden_layers
    for name, module in decoder(model).named_modules():
        if (
            isinstance(module, nn.ModuleList)
            and name.split(".")[-1] in {"layers", "h", "blocks"}
            and len(module) == wanted
        ):
            return module
    raise TargetError(
        f"{type(model).__name__} has no list of {wanted} decoder layers; hidden states cannot be captured."
    )


def load_target(
    path: Path, layer_ids: Sequence[int], dtype: torch.dtype = torch.float32
) -> HFTarget:
    """A target from a checkpoint directory, or from a ``.gguf`` file (dequantised; needs ``gguf``)."""
    from transformers import AutoModelForCausalLM

    try:
        if path.suffix == ".gguf":
            model = AutoModelForCausalLM.from_pretrained(
                path.parent, gguf_file=path.name, dtype=dtype
            )
        else:
            model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, ImportError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TargetError(f"The target {path} cannot be loaded: {first}") from error
    return HFTarget(model, layer_ids)
