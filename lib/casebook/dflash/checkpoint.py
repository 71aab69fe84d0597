"""A drafter on disk: ``config.json`` and ``model.safetensors``, as SGLang, vLLM, SpecForge and z-lab load it.

SGLang ignores every tensor whose name it does not know and does not miss one that is absent: a
checkpoint with a prefix too many is served with random weights, without a word. So reading here is
strict, and :func:`missing_and_ignored` tells what SGLang's loader would do with a set of names.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from casebook.dflash.config import DrafterConfig
from casebook.dflash.errors import DrafterError
from casebook.dflash.model import Drafter

WEIGHTS = "model.safetensors"
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "I8": 1, "BOOL": 1}
_BYTES |= {"F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "U32": 4, "U64": 8}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a checkpoint, from the header alone."""

    shape: tuple[int, ...]
    dtype: str
    """safetensors' name, e.g. ``BF16``."""


def expected_shapes(config: DrafterConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a published checkpoint (11 a layer, and 3)."""
    with torch.device("meta"):
        drafter = Drafter(config)
    return {name: tuple(p.shape) for name, p in drafter.named_parameters()}


def save_drafter(drafter: Drafter, directory: Path, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Export: the directory that a server is given. The weights are rounded to ``dtype``."""
    from safetensors.torch import save_file

    drafter.config.write(directory)
    weights = {n: t.detach().to("cpu", dtype).contiguous() for n, t in drafter.state_dict().items()}
    partial = directory / (WEIGHTS + ".partial")
    save_file(weights, partial, metadata={"format": "pt"})
    partial.replace(directory / WEIGHTS)
    return directory


def load_drafter(directory: Path, dtype: torch.dtype = torch.float32) -> Drafter:
    """Read a drafter strictly: every tensor there, none too many, all of the right shape."""
    config = DrafterConfig.read(directory)
    found = tensor_infos(directory)
    if fault := name_fault(config, {n: i.shape for n, i in found.items()}):
        raise DrafterError(f"The checkpoint in {directory} {fault}.")
    drafter = Drafter(config).to(dtype)
    drafter.load_state_dict(read_weights(directory), strict=True)
    return drafter.eval()


def read_weights(directory: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint directory, by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for path in _shards(directory):
        try:
            weights |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise DrafterError(f"{path} cannot be read ({error}); copy the file again.") from error
    return weights


def tensor_infos(directory: Path) -> dict[str, TensorInfo]:
    """Names, shapes and dtypes from the headers; DrafterError where a file is cut short."""
    return {n: i for path in _shards(directory) for n, i in read_header(path).items()}


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The header of one safetensors file, checked against the file's length."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
        whole = 8 + length + end
        infos = {n: TensorInfo(tuple(e["shape"]), e["dtype"]) for n, e in header.items()}
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        struct.error,
        MemoryError,
        OverflowError,
    ) as error:
        raise DrafterError(f"{path} is no safetensors file ({error}); copy it again.") from error
    if path.stat().st_size != whole:
        raise DrafterError(
            f"{path} has {path.stat().st_size} bytes where its header tells of {whole}; copy it again."
        )
    return infos


def _shards(directory: Path) -> list[Path]:
    found = sorted(directory.glob("*.safetensors"))
    if not found:
        raise DrafterError(f"There is no *.safetensors in {directory}; give an exported drafter.")
    return found


def missing_and_ignored(
    names: Iterable[str], config: DrafterConfig
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What SGLang's ``load_weights`` would leave at its initial value, and what it would skip.

    Its rule (``srt/models/dflash.py``, 0.5.11 to 0.5.23): a name is taken with or without a leading
    ``model.``; q/k/v and gate/up are pieces of fused parameters; all else is skipped silently.
    """
    wanted = set(expected_shapes(config))
    taken, ignored = set(), []
    for name in names:
        plain = name if name in wanted else name.removeprefix("model.")
        if plain in wanted:
            taken.add(plain)
        else:
            ignored.append(name)
    return tuple(sorted(wanted - taken)), tuple(sorted(ignored))


def name_fault(config: DrafterConfig, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """What keeps tensors of these names and shapes from being this drafter, or None."""
    missing, ignored = missing_and_ignored(shapes, config)
    if missing or ignored:
        parts = [f"lacks {len(missing)} tensors such as {missing[0]}"] if missing else []
        parts += (
            [f"holds {len(ignored)} that SGLang ignores such as {ignored[0]}"] if ignored else []
        )
        return " and ".join(parts)
    for name, shape in expected_shapes(config).items():
        found = shapes.get(name, shapes.get(f"model.{name}"))
        if found != shape:
            return f"has {name} of shape {list(found or ())} where the configuration asks {list(shape)}"
    return None
