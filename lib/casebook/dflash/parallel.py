"""How a step is shared among processes: alone, or FSDP2 over the ranks of a process group.

Both give the same update. The gradients that ``backward`` leaves are of the *sum* of losses; a group
adds them up over ranks, divides by the total weight, and clips by the global norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from casebook.dflash.model import Drafter


class Group(Protocol):
    """The ranks that train one drafter together."""

    rank: int
    size: int

    def spread(self, drafter: Drafter) -> Drafter:
        """Place the drafter's weights on the ranks."""
        ...

    def total(self, sums: Tensor) -> Tensor:
        """Add ``sums`` up over the ranks."""
        ...

    def finish_gradients(
        self, parameters: Sequence[nn.Parameter], denominator: float, clip: float
    ) -> float:
        """Normalise and clip; returns the norm before clipping."""
        ...

    def gather(self, drafter: Drafter, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """Whole weights and optimiser state, on rank 0."""
        ...

    def scatter(
        self, drafter: Drafter, optimizer: torch.optim.Optimizer, weights: Any, moments: Any
    ) -> None:
        """The way back of :meth:`gather`."""
        ...

    def wait(self) -> None:
        """Until all ranks are here."""
        ...


class Alone:
    """One process."""

    rank, size = 0, 1

    def spread(self, drafter: Drafter) -> Drafter:
        """As it is."""
        return drafter

    def total(self, sums: Tensor) -> Tensor:
        """As they are."""
        return sums

    def finish_gradients(
        self, parameters: Sequence[nn.Parameter], denominator: float, clip: float
    ) -> float:
        """Divide by the total weight, then clip."""
        return normalise(parameters, denominator, clip)

    def gather(self, drafter: Drafter, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """The state dicts."""
        return drafter.state_dict(), optimizer.state_dict()

    def scatter(
        self, drafter: Drafter, optimizer: torch.optim.Optimizer, weights: Any, moments: Any
    ) -> None:
        """Load the state dicts."""
        drafter.load_state_dict(weights)
        optimizer.load_state_dict(moments)

    def wait(self) -> None:
        """Nobody to wait for."""


class Sharded:
    """FSDP2: each rank keeps a slice of every weight, gradient and moment."""

    def __init__(self, group: Any, device: str = "cpu") -> None:
        """``group`` is a ``torch.distributed`` process group of the drafter ranks."""
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh

        self.group, self.device = group, device
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.mesh = DeviceMesh.from_group(group, device)

    def spread(self, drafter: Drafter) -> Drafter:
        """Shard layer by layer; gradients are summed, not averaged, over the ranks."""
        from torch.distributed.fsdp import fully_shard

        for module in (*drafter.layers, drafter):
            sharded: Any = fully_shard(module, mesh=self.mesh)
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        return drafter

    def total(self, sums: Tensor) -> Tensor:
        """Add up over the ranks."""
        import torch.distributed as dist

        moved = sums.to(self.device)
        dist.all_reduce(moved, group=self.group)
        return moved.cpu()

    def finish_gradients(
        self, parameters: Sequence[nn.Parameter], denominator: float, clip: float
    ) -> float:
        """As alone; the norm is over all slices."""
        return normalise(parameters, denominator, clip)

    def gather(self, drafter: Drafter, optimizer: torch.optim.Optimizer) -> tuple[Any, Any]:
        """Whole state dicts on rank 0, in the form of a single process."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_state_dict(drafter, optimizer, options=options)

    def scatter(
        self, drafter: Drafter, optimizer: torch.optim.Optimizer, weights: Any, moments: Any
    ) -> None:
        """Load whole state dicts, each rank its slice."""
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        set_state_dict(
            drafter, optimizer, model_state_dict=weights, optim_state_dict=moments, options=options
        )

    def wait(self) -> None:
        """A barrier."""
        import torch.distributed as dist

        dist.barrier(group=self.group)


def normalise(parameters: Iterable[nn.Parameter], denominator: float, clip: float) -> float:
    """Divide all gradients by ``denominator``, clip to ``clip``; the norm before clipping."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    summed: Any = torch.nn.utils.get_total_norm(gradients)
    norm = float(summed.full_tensor() if hasattr(summed, "full_tensor") else summed) / denominator
    # Both in one pass over the gradients. 1e-6 as in torch's ``clip_grad_norm_``.
    factor = min(1.0, clip / (norm + 1e-6)) / denominator
    torch._foreach_mul_(gradients, factor)
    return norm
