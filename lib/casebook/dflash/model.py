"""The DFlash drafter: a few Qwen3-shaped layers that denoise a block against the target's hidden states.

::

    c   = hidden_norm(fc(cat of the taps))       [b, S, H]   once, for all layers
    h   = target embedding of [anchor, MASK, ...] [b, Q, H]
    per layer: x = input_layernorm(h); queries from x; keys and values from [c ; x]
               h += o_proj(attention);  h += mlp(post_attention_layernorm(h))
    out = norm(h);  logits = the target's own head

The embedding and the head are the target's and are not here. Context tokens never pass through a
layer: per layer each is one key and one value, so in serving a token is projected once and kept.

Parameter names are those of the published checkpoints (z-lab, SpecForge, NeMo exports).
Sources: z-lab dflash 0.1.0 ``model.py``; SpecForge 0.2.0 ``modeling/draft/dflash.py``.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from casebook.dflash.attention import Attend, Backend, attend_packed, attend_plain
from casebook.dflash.config import DrafterConfig
from casebook.dflash.errors import TargetError
from casebook.dflash.masks import Blocks
from casebook.dflash.norm import RMSNorm
from casebook.dflash.rope import Rotary

LayerCache = tuple[Tensor, Tensor]
"""Rotated keys and values of the context, ``[b, nkv, S, d]`` each."""
Rope = tuple[Tensor, Tensor]
"""Cosine and sine of some positions, ``[b, 1, n, d/2]`` each."""


class Attention(nn.Module):
    """Queries from the block; keys and values from context and block, by the same projections."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        h, d, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.heads, self.groups, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            d,
        )
        self.q_proj = nn.Linear(h, self.heads * d, bias=bias)
        self.k_proj = nn.Linear(h, self.groups * d, bias=bias)
        self.v_proj = nn.Linear(h, self.groups * d, bias=bias)
        self.o_proj = nn.Linear(self.heads * d, h, bias=bias)
        self.q_norm = RMSNorm(d, config.rms_norm_eps)
        self.k_norm = RMSNorm(d, config.rms_norm_eps)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``[b, n, H]`` to rotated ``[b, nh, n, d]``."""
        return self.q_norm.turned(self.q_proj(x).unflatten(-1, (self.heads, -1)), cos, sin)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> LayerCache:
        """``[b, n, H]`` to rotated keys and values, ``[b, nkv, n, d]`` each."""
        k = self.k_norm.turned(self.k_proj(x).unflatten(-1, (self.groups, -1)), cos, sin)
        return k, self.v_proj(x).unflatten(-1, (self.groups, -1)).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        h, i = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(h, i, bias=False)
        self.up_proj = nn.Linear(h, i, bias=False)
        self.down_proj = nn.Linear(i, h, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[b, n, H]`` to the same."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm block. The context does not pass ``input_layernorm``."""

    def __init__(self, config: DrafterConfig, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        h: Tensor,
        rope: Rope,
        attend: Attend,
        cached: LayerCache | None = None,
        context: tuple[Tensor, Rope] | None = None,
    ) -> Tensor:
        """``h`` ``[b, n, H]`` to the same, behind a cache or behind ``context``.

        ``rope`` is of the block's positions; the context ``[b, S, H]`` comes with that of its own and
        the block's. Both go through one product, for a small drafter's step is made of small
        operations; and in here, not by the caller, so that FSDP has this layer's weights whole then.
        """
        x = self.input_layernorm(h)
        if context is None:
            k, v = self.self_attn.keys_values(x, *rope)
        else:
            c, rope_of_both = context
            k, v = self.self_attn.keys_values(torch.cat((c, x), 1), *rope_of_both)
        if cached is not None:
            k, v = torch.cat((cached[0], k), 2), torch.cat((cached[1], v), 2)
        attended = attend(self.self_attn.queries(x, *rope), k, v, self.window)
        h = h + self.self_attn.o_proj(attended)
        return h + self.mlp(self.post_attention_layernorm(h))


class Drafter(nn.Module):
    """The drafter, in its two forms: packed (training) and one block over a cache (serving)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        h = config.hidden_size
        self.fc = nn.Linear(config.context_width, h, bias=False)
        self.hidden_norm = RMSNorm(h, config.rms_norm_eps)
        self.layers: Iterable[Layer] = nn.ModuleList(Layer(config, w) for w in config.windows())  # type: ignore[assignment]
        self.norm = RMSNorm(h, config.rms_norm_eps)
        self.rotary = Rotary(config.head_dim, config.rope_theta)

    def initialize(self, seed: int = 0) -> Drafter:
        """Linear weights normal(0, ``initializer_range``), norms 1; the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() == 2:
                    drawn = torch.randn(parameter.shape, generator=generator)
                    parameter.copy_(drawn * self.config.initializer_range)
                else:
                    parameter.fill_(0.0 if name.endswith("bias") else 1.0)
        return self

    def context(self, hidden: Tensor) -> Tensor:
        """Captured hidden states ``[b, S, K*H]`` to the shared context ``[b, S, H]``."""
        if hidden.shape[-1] != self.config.context_width:
            raise TargetError(
                f"The hidden states are {hidden.shape[-1]} wide; {self.config.taps} taps of a target "
                f"with hidden size {self.config.hidden_size} give {self.config.context_width}."
            )
        return self.hidden_norm(self.fc(hidden))

    def forward(
        self,
        embedded: Tensor,
        hidden: Tensor,
        blocks: Blocks,
        backend: Backend = "split",
        positions: Tensor | None = None,
    ) -> Tensor:
        """The training form: all blocks of a batch at once.

        ``embedded`` ``[b, N*B, H]`` are the slots' embeddings, ``hidden`` ``[b, S, K*H]`` the taps;
        returns ``[b, N*B, H]`` after the last norm. Rows of padding blocks are undefined but finite.
        ``positions`` int64 ``[b, N*B]`` replaces the slots' positions (for fault injection).
        """
        c = self.context(hidden)
        at = torch.arange(hidden.shape[1], device=hidden.device).expand(len(hidden), -1)
        where = blocks.positions() if positions is None else positions
        cos, sin = self.rotary(torch.cat((at, where), 1), embedded.dtype)
        rope = cos[:, :, -where.shape[1] :], sin[:, :, -where.shape[1] :]
        attend = attend_packed(blocks, backend)
        h = embedded
        for layer in self.layers:
            h = layer(h, rope, attend, context=(c, (cos, sin)))
        return self.norm(h)

    def extend(self, cache: list[LayerCache] | None, hidden: Tensor) -> list[LayerCache]:
        """Append newly verified tokens ``[b, n, K*H]`` to the serving cache: project once, keep."""
        start = cache[0][0].shape[2] if cache else 0
        c = self.context(hidden)
        at = torch.arange(start, start + hidden.shape[1], device=hidden.device)
        rope = self.rotary(at.expand(len(hidden), -1), c.dtype)
        new = [layer.self_attn.keys_values(c, *rope) for layer in self.layers]
        if not cache:
            return new
        return [
            (torch.cat((k, nk), 2), torch.cat((v, nv), 2))
            for (k, v), (nk, nv) in zip(cache, new, strict=True)
        ]

    def draft(self, embedded: Tensor, cache: list[LayerCache]) -> Tensor:
        """The serving form: one block ``[b, B, H]`` behind the cache, to ``[b, B, H]``.

        The block starts at the cache's length; its own keys and values are not kept.
        """
        start = cache[0][0].shape[2]
        at = torch.arange(start, start + embedded.shape[1], device=embedded.device)
        rope = self.rotary(at.expand(len(embedded), -1), embedded.dtype)
        h = embedded
        for layer, cached in zip(self.layers, cache, strict=True):
            h = layer(h, rope, attend_plain, cached)
        return self.norm(h)
