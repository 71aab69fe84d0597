"""The drafter's norm, with a backward pass of its own on a CPU.

A GPU has a fused kernel for the root-mean-square norm. On a CPU torch makes it of small parts and its
gradient of more, and a small drafter's step is made of norms to a fifth.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F  # noqa: N812

from casebook.dflash.rope import rotate, turn


class RMSNorm(nn.Module):
    """Root-mean-square norm, computed in float32, as Qwen3's."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``[..., size]`` in, the same shape out, in the wider dtype of ``x`` and the weight."""
        if self._by_hand(x):
            return _Norm.apply(x, self.weight, self.eps)
        return self.weight * F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype)

    def turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """``[b, n, heads, d]`` normed and turned (:mod:`casebook.dflash.rope`): ``[b, heads, n, d]``."""
        if self._by_hand(x):
            return _TurnedNorm.apply(x, self.weight, self.eps, cos, sin)
        return rotate(self(x).transpose(1, 2), cos, sin)

    def _by_hand(self, x: Tensor) -> bool:
        return x.device.type == "cpu" and x.dtype == torch.float32 == self.weight.dtype


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed, scale = _normed(x, weight, eps)
        ctx.save_for_backward(x, scale, weight)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return *_gradients(grad, *ctx.saved_tensors), None


class _TurnedNorm(torch.autograd.Function):
    """Both in one, for what lies between them would be one more tensor to write and read."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor
    ) -> Tensor:
        normed, scale = _normed(x, weight, eps)
        ctx.save_for_backward(x, scale, weight, cos, sin)
        return turn(normed.transpose(1, 2), cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        x, scale, weight, cos, sin = ctx.saved_tensors
        back = turn(grad.transpose(1, 2), cos.transpose(1, 2), sin.transpose(1, 2), -1)
        return *_gradients(back, x, scale, weight), None, None, None


def _normed(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """``weight * x * scale``, and scale ``[..., 1]``: 1 / sqrt(mean(x^2) + eps)."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale = length.square_().mul_(1 / len(weight)).add_(eps).rsqrt_()
    return (x * scale).mul_(weight), scale


def _gradients(grad: Tensor, x: Tensor, scale: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Those of ``x`` and of the weight, from that of :func:`_normed`'s first."""
    size = len(weight)
    x, rows, scale = x.reshape(-1, size), grad.reshape(-1, size), scale.view(-1, 1)
    along = rows * x
    grad_weight = along.mT.mv(scale[:, 0])
    # A longer row is scaled down: take off what of the gradient lies along it.
    pull = along.mv(weight)[:, None].mul_(scale).mul_(scale)
    towards = torch.mul(rows, weight, out=along)
    towards = towards.addcmul_(x, pull, value=-1 / size).mul_(scale)
    return towards.view(grad.shape), grad_weight
