"""Rotary positions of the drafter: full width, neox layout, frequencies always in float32.

``model.to(torch.bfloat16)`` would round the frequencies too; at position 2048 that turns the fastest
pairs by more than a radian (NeMo Automodel#2859). So they are recomputed in float32 from the base
whenever they are used on a device, and never stored as a buffer that a cast can reach.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def inverse_frequencies(head_dim: int, theta: float, device: torch.device | None = None) -> Tensor:
    """``theta ** (-2i / head_dim)`` for i = 0..head_dim/2-1: float32 ``[head_dim/2]``."""
    steps = torch.arange(0, head_dim, 2, dtype=torch.int64, device=device).float()
    return 1.0 / (theta ** (steps / head_dim))


class Rotary:
    """The rotation for one (head_dim, theta). Not a module: nothing here is cast, saved or trained."""

    def __init__(self, head_dim: int, theta: float) -> None:
        self.head_dim, self.theta = head_dim, theta
        self._by_device: dict[torch.device, Tensor] = {}

    def inv_freq(self, device: torch.device) -> Tensor:
        """The frequencies on ``device``, float32 ``[head_dim/2]``."""
        if device not in self._by_device:
            self._by_device[device] = inverse_frequencies(self.head_dim, self.theta, device)
        return self._by_device[device]

    def __call__(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each position: ``[b, n]`` integers to two ``[b, 1, n, head_dim/2]``.

        Angles are taken in float32 and rounded to ``dtype`` at the end, as transformers does. One
        number turns a pair, so half the width says all; the axis of length 1 is the heads'.
        """
        angles = positions.float()[:, None, :, None] * self.inv_freq(positions.device)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn ``x`` ``[b, heads, n, head_dim]`` by ``[b, 1, n, head_dim/2]`` (neox layout); contiguous."""
    return _Rotate.apply(x, cos, sin)


class _Rotate(torch.autograd.Function):
    """A rotation, whose gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turn(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        return turn(grad, cos, sin, -1), None, None


def turn(x: Tensor, cos: Tensor, sin: Tensor, way: int = 1) -> Tensor:
    """:func:`rotate` without a gradient, the other way where ``way`` is -1."""
    out = torch.empty(x.shape, dtype=torch.result_type(x, cos), device=x.device)
    first, second = x.chunk(2, -1)
    out_first, out_second = out.chunk(2, -1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-way)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin, value=way)
    return out
