"""Rotary positions of the drafter: full width, neox layout, frequencies always in float32.

``model.to(torch.bfloat16)`` would round the frequencies too; at position 2048 that turns the fastest
pairs by more than a radian (NeMo Automodel#2859). So they are recomputed in float32 from the base
whenever they are used on a device, and never stored as a buffer that a cast can reach.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
        """Cosine and sine of each position: ``[b, n]`` integers to two ``[b, n, head_dim]``.

        Angles are taken in float32 and rounded to ``dtype`` at the end, as transformers does.
        """
        angles = positions.float()[..., None] * self.inv_freq(positions.device)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn ``x`` ``[b, heads, n, head_dim]`` by ``cos``/``sin`` ``[b, n, head_dim]`` (neox layout)."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x * cos[:, None] + turned * sin[:, None]
