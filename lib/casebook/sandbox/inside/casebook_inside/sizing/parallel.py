"""One rank of a server, without the others.

SGLang's own code makes the groups of ranks (tensor, pipeline, expert, attention); only the object
that would open connections between them is replaced by one that knows its members.
"""

from __future__ import annotations

import inspect
from typing import Any


class Handle:
    """A process group as torch hands it out: it has a size."""

    def __init__(self, world_size: int, rank_in_group: int = 0) -> None:
        self._world_size, self._rank = world_size, rank_in_group

    def rank(self) -> int:
        """This process's place in it."""
        return self._rank

    def size(self) -> int:
        """How many ranks."""
        return self._world_size


class Group:
    """A group of ranks as ``GroupCoordinator`` describes it, without communicators."""

    def __init__(self, rank: int, group_ranks: list[list[int]], local_rank: int, name: str) -> None:
        self.unique_name = name
        self.rank, self.local_rank = rank, local_rank
        self.ranks = next(ranks for ranks in group_ranks if rank in ranks)
        self.world_size = len(self.ranks)
        self.rank_in_group = self.ranks.index(rank)
        self.cpu_group = self.device_group = Handle(self.world_size, self.rank_in_group)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("use_") or name.endswith("_comm") or name == "mq_broadcaster":
            return None
        members = {
            "first_rank": self.ranks[0],
            "last_rank": self.ranks[-1],
            "is_first_rank": self.rank == self.ranks[0],
            "is_last_rank": self.rank == self.ranks[-1],
            "next_rank": self.ranks[(self.rank_in_group + 1) % self.world_size],
            "prev_rank": self.ranks[(self.rank_in_group - 1) % self.world_size],
        }
        if name in members:
            return members[name]
        raise AttributeError(f"A group of simulated ranks has no {name!r}.")

    def barrier(self) -> None:
        """Nobody to wait for."""

    def broadcast_object(self, obj: Any = None, **_: Any) -> Any:
        """Every rank holds the same."""
        return obj

    def all_gather_object(self, obj: Any) -> list[Any]:
        """Every rank holds the same."""
        return [obj] * self.world_size


def install(rank: int, world_size: int) -> None:
    """Make torch and SGLang believe that ``rank`` is one of ``world_size`` connected processes."""
    import torch
    from sglang.srt.distributed import parallel_state

    signature = inspect.signature(parallel_state.GroupCoordinator.__init__)

    def make(_cls: type, *args: Any, **kwargs: Any) -> Group:
        bound = signature.bind_partial(None, *args, **kwargs).arguments
        name = bound.get("group_name") or "anonymous"
        return Group(rank, bound["group_ranks"], bound.get("local_rank", 0), name)

    parallel_state.GroupCoordinator.__new__ = make  # type: ignore[method-assign,assignment]

    distributed = torch.distributed
    answers: dict[str, Any] = {
        "is_initialized": lambda: True,
        "init_process_group": lambda *_a, **_k: None,
        "get_rank": lambda *_a, **_k: rank,
        "get_world_size": lambda group=None, *_a, **_k: (
            world_size if not hasattr(group, "size") else group.size()
        ),
        "get_backend": lambda *_a, **_k: "nccl",
        "new_group": lambda *_a, **_k: Handle(world_size),
        "monitored_barrier": lambda *_a, **_k: None,
        "barrier": lambda *_a, **_k: None,
        # The ranks are equal: reducing over them changes nothing.
        "all_reduce": lambda *_a, **_k: None,
        "broadcast": lambda *_a, **_k: None,
        "broadcast_object_list": lambda *_a, **_k: None,
    }
    for name, answer in answers.items():
        setattr(distributed, name, answer)
