"""SGLang's own ``ModelRunner``, from its constructor to the end of its memory pools.

What is not SGLang's here: the ranks' connections (:mod:`.parallel`), the files of weights (the model
is constructed and counted, or a number of bytes is charged) and the device's memory (:mod:`.counter`). Up
to 0.5.13 the constructor goes on from the weights to the pools and beyond, and is stopped behind the
pools; from 0.5.14 the pools come by a call of their own, after the draft's weights.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import sys
from typing import Any

import torch

from casebook_inside.resolve import in_effect
from casebook_inside.sizing.counter import Counter


class PoolsReadyError(Exception):
    """Stops a constructor that would go on to attention backends and graphs."""


def splits_pools() -> bool:
    """Whether this release loads the weights of target and draft before it makes any pool."""
    from sglang.srt.model_executor.model_runner import ModelRunner

    return hasattr(ModelRunner, "alloc_memory_pool")


class Loader:
    """Stands in for the weight loader: hands out a model whose weights are only counted.

    With ``next_bytes`` the model is empty and that many bytes are charged. Without, the release's own
    model class is constructed, parameter by parameter as the loader would before it reads any file.
    """

    def __init__(self, counter: Counter, ranks: dict[str, int]) -> None:
        self._counter, self._ranks = counter, ranks
        self.load_config: Any = None
        self.next_bytes: int | None = 0
        self.left_bytes: list[int] = []
        """Free memory behind each load."""
        self.taken_bytes: list[int] = []
        """What each load took."""
        self.busy = False
        """Whether a load has begun and not ended."""
        self.sizing_bytes: int | None = None
        """Free memory when the target's pools are sized."""

    def load_model(self, *, model_config: Any, **_: Any) -> torch.nn.Module:
        """The model; on a pipeline stage it knows its layers."""
        before, self.busy = self._counter.free_bytes, True
        if self.next_bytes is None:
            model = self._constructed(model_config)
            gc.collect()
        else:
            model = self._empty(model_config, self.next_bytes)
        self.left_bytes.append(self._counter.free_bytes)
        self.taken_bytes.append(before - self._counter.free_bytes)
        self.busy = False
        return model

    def _empty(self, model_config: Any, size_bytes: int) -> torch.nn.Module:
        self._counter.charge(size_bytes)
        name = (getattr(model_config.hf_config, "architectures", None) or ["Model"])[0]
        model = type(name, (torch.nn.Module,), {"forward": _forward})()
        if self._ranks["pp_size"] > 1:
            from sglang.srt.distributed.utils import get_pp_indices

            layers = max(model_config.num_hidden_layers, model_config.num_attention_layers)
            model.start_layer, model.end_layer = get_pp_indices(
                layers, self._ranks["pp_rank"], self._ranks["pp_size"]
            )
        return model

    def _constructed(self, model_config: Any) -> torch.nn.Module:
        from sglang.srt.model_loader import loader

        with loader.set_default_torch_dtype(model_config.dtype), torch.device("cuda"):
            quantization = loader._get_quantization_config(model_config, self.load_config)
            return loader._initialize_model(model_config, self.load_config, quantization).eval()


def _forward(
    self: Any, input_ids: Any, positions: Any, forward_batch: Any, pp_proxy_tensors: Any = None
) -> None:
    """Only its parameters' names are read (does the model take part in a pipeline?)."""


def install(counter: Counter, loader: Loader) -> None:
    """Replace the loader, the device's memory answers and what lies behind the pools."""
    from sglang.srt.model_executor import model_runner

    def get_model_loader(load_config: Any, **_: Any) -> Loader:
        loader.load_config = load_config
        return loader

    _everywhere("get_model_loader", get_model_loader)
    # Where each expert lies: a megabyte at most, and read back from the device, which has no data.
    _everywhere("compute_initial_expert_location_metadata", lambda *_a, **_k: None)
    cuda = torch.cuda
    cuda.mem_get_info = lambda _d=None: (counter.free_bytes, counter.total_bytes)  # type: ignore[assignment]
    cuda.Stream = cuda.Event = _Inert  # type: ignore[assignment,misc]
    cuda.current_stream = cuda.default_stream = lambda *_a, **_k: _Inert()  # type: ignore[assignment]
    from sglang.srt.mem_cache import memory_pool

    for pool in [one for one in vars(memory_pool).values() if isinstance(one, type)]:
        for name in [name for name in vars(pool) if "warmup" in name]:
            # Runs a copying kernel once, so that it is compiled; holds no memory.
            setattr(pool, name, lambda _self: None)
    cls = model_runner.ModelRunner
    _note_sizing(cls, counter, loader)
    if splits_pools():
        if hasattr(cls, "_init_post_memory_pool_components"):
            cls._init_post_memory_pool_components = lambda _self: None
        return
    original = cls.init_memory_pool

    def init_memory_pool(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if hasattr(self, "max_running_requests"):
            raise PoolsReadyError
        cls.__setattr__ = stop_at_requests  # up to 0.5.9 it comes behind the pools

    def stop_at_requests(self: Any, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "max_running_requests":
            del cls.__setattr__
            raise PoolsReadyError

    cls.init_memory_pool = init_memory_pool


def _note_sizing(cls: type, counter: Counter, loader: Loader) -> None:
    """Note what is free when the release looks: a little is taken between the weights and that."""
    owner: Any = cls
    with contextlib.suppress(ImportError):
        from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator

        owner = KVCacheConfigurator
    names = ("_profile_available_bytes", "profile_max_num_token")
    name = next(name for name in names if hasattr(owner, name))
    original = getattr(owner, name)

    def profiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        if loader.sizing_bytes is None:  # up to 0.5.9 the draft's runner looks, too
            gc.collect()
            loader.sizing_bytes = counter.free_bytes
        return original(self, *args, **kwargs)

    setattr(owner, name, profiled)


class _Inert:
    """A stream or an event: there is nothing to wait for."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.cuda_stream = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_a, **_k: None


def _everywhere(name: str, replacement: Any) -> None:
    """Put ``replacement`` wherever SGLang's modules hold a function under ``name``."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("sglang.") and name in getattr(module, "__dict__", {}):
            setattr(module, name, replacement)


def make(args: Any, ranks: dict[str, int], shared: dict[str, Any] | None = None) -> Any:
    """Construct the target's runner, or with ``shared`` (the target's pools) the draft's.

    Returns the runner with its pools, or before them where the release splits the two.
    """
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.model_executor.model_runner import ModelRunner

    draft = shared is not None
    path = args.speculative_draft_model_path if draft else args.model_path
    config = ModelConfig.from_server_args(args, model_path=path, is_draft_model=draft)
    given = {
        "model_config": config,
        "mem_fraction_static": args.mem_fraction_static,
        "gpu_id": 0,
        "nccl_port": 29500,
        "server_args": args,
        "is_draft_worker": draft,
        "ps": _parallel_state(args, ranks),
        "moe_dp_rank": 0,
        "dp_rank": 0,
        "draft_model_idx": None,
        **ranks,
        **(shared or {}),
    }
    names = inspect.signature(ModelRunner.__init__).parameters
    runner = ModelRunner.__new__(ModelRunner)
    with contextlib.suppress(PoolsReadyError):
        runner.__init__(**{k: v for k, v in given.items() if k in names})
    return runner


def publish(args: Any, ranks: dict[str, int]) -> None:
    """0.5.19 on: what the scheduler's process does first, so that arguments can be read anywhere."""
    try:
        from sglang.srt import runtime_context
    except ImportError:
        return
    if not hasattr(runtime_context, "publish"):
        return
    place: dict[str, Any] = {}
    if hasattr(runtime_context, "SpawnRanks"):
        rank = ranks["pp_rank"] * ranks["tp_size"] + ranks["tp_rank"]
        place["ranks"] = runtime_context.SpawnRanks(world_rank=rank, dp_rank=None, gpu_id=0)
    runtime_context.publish(args, role="scheduler", **place)
    with contextlib.suppress(ImportError):
        # 0.5.21 on: the ranks are connected before there is a runner.
        from sglang.srt.distributed.bootstrap import init_parallel_runtime

        init_parallel_runtime(server_args=args, device="cuda", dist_port=29500)


def state_slots(args: Any) -> Any:
    """The slots in effect: 0.5.17 on, sizing writes them to the published arguments only."""
    try:
        from sglang.srt.runtime_context import get_schedule

        return get_schedule().max_mamba_cache_size
    except (ImportError, AttributeError):
        return args.max_mamba_cache_size


def limits(args: Any) -> dict[str, Any]:
    """The arguments that bound the division, as resolved, before sizing writes to any of them."""
    names = (
        "mem_fraction_static",
        "mamba_full_memory_ratio",
        "max_mamba_cache_size",
        "max_running_requests",
        "max_total_tokens",
        "disable_radix_cache",
        "tp_size",
        "pp_size",
    )
    return {name: in_effect(args, name) for name in names}


def draft_tokens(args: Any) -> Any:
    """Draft tokens in effect, read where the release's own pools read them."""
    try:
        from sglang.srt.runtime_context import get_spec

        return get_spec().speculative_num_draft_tokens
    except (ImportError, AttributeError):
        return args.speculative_num_draft_tokens


def _parallel_state(args: Any, ranks: dict[str, int]) -> Any:
    """0.5.16 on: the scheduler tells the runner its place by an object of this class."""
    try:
        from sglang.srt.distributed.parallel_state_wrapper import ParallelState
    except ImportError:
        return None
    from sglang.srt.layers.dp_attention import compute_dp_attention_world_info

    cp = getattr(args, "attn_cp_size", 1)
    found = compute_dp_attention_world_info(
        args.enable_dp_attention, ranks["tp_rank"], ranks["tp_size"], args.dp_size, cp
    )
    attn_tp_rank, attn_tp_size, attn_dp_rank, attn_dp_size = found
    values = {
        **ranks,
        "dp_rank": 0,
        "dp_size": args.dp_size,
        "attn_tp_rank": attn_tp_rank,
        "attn_tp_size": attn_tp_size,
        "attn_cp_rank": 0,
        "attn_cp_size": cp,
        "attn_dp_rank": attn_dp_rank,
        "attn_dp_size": attn_dp_size,
        "moe_dp_rank": 0,
        "moe_dp_size": getattr(args, "moe_dp_size", 1),
        "dcp_size": getattr(args, "dcp_size", 1),
        "attn_dcp_size": getattr(args, "dcp_size", 1),
        "gpu_id": 0,
    }
    # Ways to split that came later, and that no launch here asks for: one rank, the first.
    plain = {f.name: int(f.name.endswith("_size")) for f in dataclasses.fields(ParallelState)}
    return ParallelState(**{name: values.get(name, one) for name, one in plain.items()})


def weights_of(model: torch.nn.Module) -> dict[str, Any]:
    """Bytes of a model's parameters and buffers, by dtype and by the first parts of their names."""
    by_dtype: dict[str, int] = {}
    by_part: dict[str, int] = {}
    seen: set[int] = set()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        storage = tensor.untyped_storage()
        if tensor.device.type != "cuda" or storage._cdata in seen:
            continue
        seen.add(storage._cdata)
        size = int(storage.nbytes())
        dtype = str(tensor.dtype).removeprefix("torch.")
        part = ".".join(p for p in name.split(".")[:2] if not p.isdigit())
        by_dtype[dtype] = by_dtype.get(dtype, 0) + size
        by_part[part] = by_part.get(part, 0) + size
    return {"bytes": sum(by_dtype.values()), "by_dtype": by_dtype, "by_part": by_part}


def pools_of(runner: Any) -> dict[str, Any]:
    """Bytes, shape and dtype of what a runner's pools hold, by the path of the attribute.

    Buffers of a list (one per layer) are told as one; a tensor that two paths reach counts once.
    """
    found: dict[str, dict[str, Any]] = {}
    seen: set[int] = set()
    for name in ("req_to_token_pool", "token_to_kv_pool", "token_to_kv_pool_allocator"):
        _walk(getattr(runner, name, None), name, found, seen, 0)
    return found


def _walk(value: Any, path: str, found: dict[str, Any], seen: set[int], depth: int) -> None:
    if isinstance(value, torch.Tensor):
        if value.device.type != "cuda":
            return
        storage = value.untyped_storage()
        if storage._cdata in seen:
            return
        seen.add(storage._cdata)
        entry = found.setdefault(
            path,
            {
                "bytes": 0,
                "tensors": 0,
                "shape": list(value.shape),
                "dtype": str(value.dtype).removeprefix("torch."),
            },
        )
        entry["bytes"] += int(storage.nbytes())
        entry["tensors"] += 1
        return
    if depth > 6 or id(value) in seen:
        return
    if isinstance(value, (list, tuple)):
        for one in value:
            _walk(one, path, found, seen, depth + 1)
    elif isinstance(value, dict):
        for one in value.values():
            _walk(one, path, found, seen, depth + 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        seen.add(id(value))
        for field in dataclasses.fields(value):
            _walk(getattr(value, field.name, None), f"{path}.{field.name}", found, seen, depth + 1)
    elif type(value).__module__.startswith("sglang.") and hasattr(value, "__dict__"):
        seen.add(id(value))
        for key, one in vars(value).items():
            _walk(one, f"{path}.{key}", found, seen, depth + 1)
