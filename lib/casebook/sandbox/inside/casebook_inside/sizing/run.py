"""The operation ``size``: resolve a launch, then let the release build its pools on counted memory."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
from collections.abc import Iterator
from typing import Any

from casebook_inside import recorder
from casebook_inside.encode import encode
from casebook_inside.resolve import describe
from casebook_inside.sizing import counter, facts, parallel, runner


def prepare() -> None:
    """Import SGLang's runner, once per process, before any launch.

    The first fake tensor of a process makes torch import and compute much; it is made here.
    """
    import torch
    from sglang.srt.model_executor import model_runner  # noqa: F401

    with counter.counted(counter.Counter(1 << 40, 1 << 40)):
        torch.zeros(2, device="cuda")


def plain_request(argv: list[str]) -> dict[str, Any]:
    """A request that walks the whole way on a device that nothing fills."""
    device = {"total_bytes": 1 << 45, "free_bytes": 1 << 45, "bounded": False}
    weights = {"weights_bytes": 1 << 30, "draft_weights_bytes": 1 << 30}
    return {"argv": argv, "device": {**device, **weights}, "list_imports": True}


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[list[str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append([record.levelname, record.getMessage()])


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Size the pools of ``request["argv"]``.

    ``request["device"]``: ``total_bytes``, ``free_bytes`` (before anything of this server is there),
    ``weights_bytes``, ``draft_weights_bytes``; ``request["pp_rank"]``.
    """
    import sglang
    import sglang.srt.server_args as server_args

    random.seed(0)
    # Only a warm-up asks.
    before = set(sys.modules) if request.get("list_imports") else set()
    lines = _Lines()
    root = logging.getLogger("sglang")
    root.addHandler(lines)
    root.setLevel(logging.INFO)
    record = recorder.Recorder(os.path.dirname(os.path.abspath(sglang.__file__)))
    answer: dict[str, Any] = {"stage": "arguments", "outcome": {"kind": "resolved"}}
    memory: counter.Counter | None = None
    try:
        args = server_args.prepare_server_args(list(request["argv"]))
        if hasattr(args, "resolve_once"):
            args.resolve_once()
        if hasattr(args, "check_server_args"):
            args.check_server_args()
        answer["limits"] = runner.limits(args)
        told = request["device"]
        memory = counter.Counter(told["total_bytes"], told["free_bytes"], told.get("bounded", True))
        answer["stage"] = "pools"
        _size(args, request, memory, answer)
    except SystemExit as stop:
        answer["outcome"] = {"kind": "exit", "code": stop.code if isinstance(stop.code, int) else 1}
    except BaseException as error:  # what SGLang raises is the answer
        answer["outcome"] = {"kind": "raised", **describe(error, record)}
    finally:
        root.removeHandler(lines)
    if memory is not None:
        answer["refused"] = memory.refused
        answer["free_bytes"] = memory.free_bytes
    answer["log"] = lines.lines
    if before:
        answer["imported"] = [name for name in list(sys.modules) if name not in before]
    return answer


def _size(
    args: Any, request: dict[str, Any], memory: counter.Counter, answer: dict[str, Any]
) -> None:
    told = request["device"]
    ranks = {
        "tp_rank": 0,
        "tp_size": args.tp_size,
        "pp_rank": int(request.get("pp_rank", 0)),
        "pp_size": args.pp_size,
        "moe_ep_rank": 0,
        "moe_ep_size": args.ep_size,
        "attn_cp_rank": 0,
    }
    parallel.install(ranks["pp_rank"] * args.tp_size, args.tp_size * args.pp_size)
    loader = runner.Loader(memory, ranks)
    loader.next_bytes = told["weights_bytes"]
    with counter.counted(memory), _noted(loader, answer):
        runner.install(memory, loader)
        runner.publish(args, ranks)
        target = runner.make(args, ranks)
        answer["weights"] = runner.weights_of(target.model)
        split = runner.splits_pools()
        drafts = _has_draft(target)
        draft = None
        if split:
            if drafts:
                loader.next_bytes = told["draft_weights_bytes"]
                draft = runner.make(args, ranks, {})
            target.alloc_memory_pool()
        _tell(target, "target", memory, answer)
        answer["facts"] = facts.facts_of(target)
        speculates = not target.spec_algorithm.is_none()
        answer["draft_tokens"] = encode(runner.draft_tokens(args)) if speculates else None
        if drafts:
            shared = {
                "req_to_token_pool": target.req_to_token_pool,
                "token_to_kv_pool_allocator": target.token_to_kv_pool_allocator,
                "memory_pool_config": getattr(target, "memory_pool_config", None),
            }
            if draft is None:
                loader.next_bytes = told["draft_weights_bytes"]
                draft = runner.make(args, ranks, shared)
            else:
                for name, value in shared.items():
                    setattr(draft, name, value)
                draft.alloc_memory_pool()
            _tell(draft, "draft", memory, answer)
            answer["draft_weights"] = runner.weights_of(draft.model)


@contextlib.contextmanager
def _noted(loader: runner.Loader, answer: dict[str, Any]) -> Iterator[None]:
    """Tell the free memory at each step that was reached, however it ends."""
    try:
        yield
    finally:
        names = ("after_load_bytes", "after_draft_load_bytes")
        split = runner.splits_pools()
        answer.update(zip(names if split else names[:1], loader.left_bytes, strict=False))
        answer.update(
            zip(("weights_bytes", "draft_weights_bytes"), loader.taken_bytes, strict=False)
        )
        if loader.busy:
            answer["loading"] = "the draft" if loader.taken_bytes else "the target"
        if loader.sizing_bytes is not None:
            answer["at_sizing_bytes"] = loader.sizing_bytes


def _has_draft(target: Any) -> bool:
    algorithm = target.spec_algorithm
    ngram = getattr(algorithm, "is_ngram", lambda: False)()
    return not algorithm.is_none() and not ngram


def _tell(made: Any, name: str, memory: counter.Counter, answer: dict[str, Any]) -> None:
    config = made.model_config
    answer[name] = {
        "free_bytes": memory.free_bytes,
        "max_total_num_tokens": int(made.max_total_num_tokens),
        "max_running_requests": int(made.max_running_requests),
        "context_len": int(config.context_len),
        "kv_cache_dtype": str(made.kv_cache_dtype).removeprefix("torch."),
        "max_mamba_cache_size": encode(runner.state_slots(made.server_args)),
        "page_size": made.page_size,
        "pools": runner.pools_of(made),
    }
