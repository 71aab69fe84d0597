"""Runs in a child: builds a release's own DFlash model class from a config, on recorders.

SGLang's ``srt/models/dflash.py`` and ``srt/speculative/dflash_utils.py`` are executed as they stand
in the release. What they import from the rest of SGLang (kernels, parallel layers, the attention
backend) is replaced by recorders on the meta device, so that the class tells which rope base, which
windows and which tensors it asks for, and what its ``load_weights`` makes of a set of names. The
configuration is read by the transformers version of the release, as the server reads it.

Usage: ``python served_child.py SITE``; reads one JSON request a line, writes one JSON answer a line,
until its input ends. Needs torch, and the capsule in SITE. Whatever the release prints goes to stderr.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

REAL = {"sglang.srt.models.dflash", "sglang.srt.speculative.dflash_utils"}
RECORD: dict[str, list[dict[str, Any]]] = {"rope": [], "attention": []}


class Anything(type):
    """A class that answers whatever is asked of it, and can be a base, a call or a decorator."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing

    def __call__(cls, *args: Any, **_kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else Nothing

    def __bool__(cls) -> bool:
        return False

    def __getitem__(cls, _item: Any) -> Any:
        return Nothing


class Nothing(metaclass=Anything):
    """The one stand-in."""


def recorders() -> dict[str, Any]:
    """The names the model class builds itself from."""
    import torch
    from torch import nn

    def parameter(*shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(*shape, device="meta"))

    class Norm(nn.Module):
        def __init__(self, size: int, *_a: Any, **_k: Any) -> None:
            super().__init__()
            self.weight = parameter(size)

    class Column(nn.Module):
        def __init__(
            self, inputs: int, outputs: Any, *_a: Any, bias: bool = False, **_k: Any
        ) -> None:
            super().__init__()
            size = sum(outputs) if isinstance(outputs, list | tuple) else outputs
            self.weight = parameter(size, inputs)
            if bias:
                self.bias = parameter(size)

    class QKV(nn.Module):
        def __init__(self, hidden_size: int, head_size: int, total_num_heads: int, total_num_kv_heads: int, *_a: Any, bias: bool = False, **_k: Any) -> None:  # fmt: skip
            super().__init__()
            size = head_size * (total_num_heads + 2 * total_num_kv_heads)
            self.weight = parameter(size, hidden_size)
            if bias:
                self.bias = parameter(size)

    class Attention(nn.Module):
        def __init__(self, *_a: Any, **kwargs: Any) -> None:
            super().__init__()
            keys = (
                "layer_id",
                "sliding_window_size",
                "attn_type",
                "num_heads",
                "num_kv_heads",
                "head_dim",
            )
            RECORD["attention"].append({k: kwargs.get(k) for k in keys})

    def get_rope(
        head_size: int, rotary_dim: int, max_position: int, base: float, *_a: Any, **kwargs: Any
    ) -> Any:
        RECORD["rope"].append(
            {
                "head_size": head_size,
                "rotary_dim": int(rotary_dim * kwargs.get("partial_rotary_factor", 1.0)),
                "max_position": max_position,
                "base": float(base),
                "is_neox_style": kwargs.get("is_neox_style", True),
                "rope_scaling": repr(kwargs.get("rope_scaling")),
            }
        )
        return None

    class Parallel:
        tp_size, tp_rank, attn_tp_size, attn_tp_rank, pp_size = 1, 0, 1, 0, 1

    class AttentionType:
        DECODER, ENCODER_ONLY = "decoder (causal)", "encoder_only (bidirectional)"

    def default_weight_loader(param: Any, loaded: Any, *_a: Any) -> None:
        if tuple(param.shape) != tuple(loaded.shape):
            raise ValueError(f"shape {tuple(loaded.shape)} for a parameter of {tuple(param.shape)}")

    return {
        "RMSNorm": Norm,
        "QKVParallelLinear": QKV,
        "MergedColumnParallelLinear": Column,
        "RowParallelLinear": Column,
        "ColumnParallelLinear": Column,
        "ReplicatedLinear": Column,
        "RadixAttention": Attention,
        "AttentionType": AttentionType,
        "get_rope": get_rope,
        "get_parallel": Parallel,
        "get_tensor_model_parallel_world_size": lambda: 1,
        "default_weight_loader": default_weight_loader,
        "SiluAndMul": nn.Identity,
        "normalize_gating": lambda *_a, **_k: False,
        "is_npu": lambda: False,
        "is_cuda": lambda: False,
        "is_musa": lambda: False,
        "is_hip": lambda: False,
        "set_weight_attrs": lambda *_a, **_k: None,
        "get_compiler_backend": lambda *_a, **_k: "eager",
    }


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answers imports of SGLang: two real files, all else stand-ins."""

    def __init__(self, site: Path, names: dict[str, Any]) -> None:
        self.site, self.names = site, names

    def find_spec(self, fullname: str, _path: Any = None, _target: Any = None) -> Any:
        top = fullname.split(".")[0]
        if top not in {"sglang", "sgl_kernel"}:
            return None
        if fullname in REAL:
            file = self.site / (fullname.replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(fullname, file)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        names = self.names

        class Stand(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                if name.startswith("__"):
                    raise AttributeError(name)
                return names.get(name, Nothing)

        module = Stand(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: Any) -> None:
        """Nothing to run."""


def own_function(site: Path, name: str) -> Any:
    """One function of ``srt/utils``, from the release's source, without importing its module."""
    for path in sorted((site / "sglang" / "srt" / "utils").rglob("hf_transformers*/*.py")) + sorted(
        (site / "sglang" / "srt" / "utils").glob("hf_transformers*.py")
    ):
        tree = ast.parse(path.read_text("utf-8"))
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                node.decorator_list = []
                scope: dict[str, Any] = {"Any": Any, "__name__": "casebook_extract"}
                future = ast.parse("from __future__ import annotations").body
                code = compile(ast.Module([*future, node], []), str(path), "exec")
                exec(code, scope)  # the release's own function
                return scope[name]
    return None


def prepare(site: Path) -> None:
    """Stand-ins before anything of SGLang is imported."""
    names = recorders()
    if rope := own_function(site, "get_rope_config"):
        names["get_rope_config"] = rope
    sys.meta_path.insert(0, Finder(site, names))


def answer_to(request: dict[str, Any]) -> dict[str, Any]:
    """What the release makes of ``request["directory"]`` and ``request["shapes"]``."""
    import transformers

    for kept in RECORD.values():
        kept.clear()
    answer: dict[str, Any] = {"transformers": transformers.__version__}
    config = transformers.AutoConfig.from_pretrained(request["directory"], local_files_only=True)
    utils = importlib.import_module("sglang.srt.speculative.dflash_utils")
    try:
        parsed = utils.parse_dflash_draft_config(draft_hf_config=config)
        answer["block_size"] = parsed.resolve_block_size(default=16)
        answer["mask_token_id"] = parsed.mask_token_id
        model = importlib.import_module("sglang.srt.models.dflash").DFlashDraftModel(config)
        answer |= {"taps": model.num_context_features, **RECORD}
        return answer | loaded_by(model, request.get("shapes", {}))
    except (ValueError, AssertionError, TypeError) as error:
        return answer | {"refused": f"{type(error).__name__}: {error}"}


def loaded_by(model: Any, shapes: dict[str, list[int]]) -> dict[str, list[str]]:
    """Offer tensors one by one to the model's ``load_weights``: what was ignored, what is missing."""
    import torch

    loaded: dict[str, int] = {}

    def counted(name: str, parameter: Any) -> Any:
        def loader(_parameter: Any, weight: Any, *shard: Any) -> None:
            loaded[name] = loaded.get(name, 0) + weight.numel()
            if not shard and tuple(weight.shape) != tuple(parameter.shape):
                raise ValueError(
                    f"{name} has shape {tuple(weight.shape)}, not {tuple(parameter.shape)}"
                )

        return loader

    sizes = {}
    for name, parameter in model.named_parameters():
        parameter.weight_loader = counted(name, parameter)
        sizes[name] = parameter.numel()
    ignored = []
    for name, shape in shapes.items():
        before = sum(loaded.values())
        model.load_weights([(name, torch.empty(*shape, device="meta"))])
        if sum(loaded.values()) == before:
            ignored.append(name)
    missing = [n for n, size in sizes.items() if loaded.get(n, 0) < size]
    return {"ignored": sorted(ignored), "missing": sorted(missing)}


def serve(site: Path) -> None:
    """Answer requests until the input ends."""
    sys.path.insert(0, str(site))
    answers, sys.stdout = sys.stdout, sys.stderr
    prepare(site)
    for line in sys.stdin:
        try:
            found = answer_to(json.loads(line))
        except Exception as error:
            found = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
