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
        self._eps_tensor = torch.tensor(eps, device="cpu")  # made once, for _Float32Norm

    def forward(self, x: Tensor) -> Tensor:
        """``[..., size]`` in, the same shape and dtype out."""
        if x.device.type == "cpu" and x.dtype == torch.float32 == self.weight.dtype:
            return _Float32Norm.apply(x, self.weight, self._eps_tensor)
        return self.weight * F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype)


class _Float32Norm(torch.autograd.Function):
    """``weight * x / sqrt(mean(x^2) + eps)`` over the last axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
        size = x.shape[-1]
        rows = x.reshape(-1, size)
        length = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        scale = torch.addcmul(eps, length, length, value=1 / size).rsqrt_()
        normed = rows * scale
        ctx.save_for_backward(normed, scale, weight)
        return (normed * weight).view(x.shape)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        normed, scale, weight = ctx.saved_tensors
        rows = grad.reshape(normed.shape)
        along = rows * normed
        # A longer row is scaled down: take off what of the gradient lies along it.
        pull = along.mv(weight)[:, None]
        towards = torch.addcmul(rows * weight, normed, pull, value=-1 / len(weight)).mul_(scale)
        return towards.view(grad.shape), along.sum(0), None
