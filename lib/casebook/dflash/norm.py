"""The drafter's norm, with a backward pass of its own on a CPU.

A GPU has a fused kernel for the root-mean-square norm. On a CPU torch makes it of small parts and
its gradient of more; there the norm was a quarter of a small drafter's step, and the gradient below
takes half to a third of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32, as Qwen3's."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``[..., size]`` in, the same shape and dtype out."""
        if x.device.type == "cpu" and x.dtype == torch.float32 == self.weight.dtype:
            return _Float32Norm.apply(x, self.weight, self.eps)
        return self.weight * F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype)


class _Float32Norm(torch.autograd.Function):
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        scale = x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        normed = x * scale
        ctx.save_for_backward(normed, scale, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        normed, scale, weight = ctx.saved_tensors
        along = grad * normed
        grad_weight = along.flatten(0, -2).sum(0)
        # What a longer row takes back: the mean of grad * weight * normed, along normed.
        pull = (along @ weight)[..., None] / -weight.shape[0]
        return torch.addcmul(grad * weight, normed, pull).mul_(scale), grad_weight, None
