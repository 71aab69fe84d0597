"""Hidden states kept on disk: sharded safetensors, with what is needed to refuse them later.

A token of Qwen3.6-27B costs 51,200 bytes, so the size is told before anything is written and
refused where it does not fit. Every shard has a checksum; the manifest names the tapped layers, for
states of other layers look just the same and train without complaint.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from casebook.dflash.batch import Batch, Sample, collate, refuse_not_finite
from casebook.dflash.checkpoint import read_header
from casebook.dflash.config import DrafterConfig
from casebook.dflash.errors import DrafterError, StoreError
from casebook.dflash.feed import capture_batch
from casebook.dflash.target import HiddenSource
from casebook.runs.files import write_json

MANIFEST = "hidden.json"


@dataclass(frozen=True)
class Shard:
    """One file of the store."""

    file: str
    samples: int
    tokens: int
    sha256: str


def token_bytes(taps: int, hidden_size: int, element_bytes: int = 2) -> int:
    """Bytes a token takes: K * H elements, an int64 id and a mask byte."""
    return taps * hidden_size * element_bytes + 9


def estimate_bytes(
    samples: Sequence[Sample], source: HiddenSource, dtype: torch.dtype = torch.bfloat16
) -> int:
    """What :func:`capture` of these samples will write, headers (below 1 %) not counted."""
    each = token_bytes(len(source.layer_ids), source.hidden_size, dtype.itemsize)
    return sum(map(len, samples)) * each


def capture(
    samples: Sequence[Sample],
    source: HiddenSource,
    out: Path,
    dtype: torch.dtype = torch.bfloat16,
    shard_samples: int = 64,
    batch: int = 4,
    room_bytes: int | None = None,
    progress: bool = True,
) -> Path:
    """Write the hidden states of ``samples`` to ``out``; finished shards are kept when resumed.

    ``room_bytes`` is what may be used (default: the disk's free space).
    """
    if not samples:
        raise StoreError("There is no sample to capture.")
    out.mkdir(parents=True, exist_ok=True)
    need = estimate_bytes(samples, source, dtype)
    room = shutil.disk_usage(out).free if room_bytes is None else room_bytes
    if need > room:
        raise StoreError(
            f"The hidden states of {sum(map(len, samples)):,} tokens take {need / 1e9:,.1f} GB and "
            f"{room / 1e9:,.1f} GB are free; capture online instead, or fewer samples."
        )
    identity = {
        "layer_ids": list(source.layer_ids),
        "hidden_size": source.hidden_size,
        "dtype": str(dtype).removeprefix("torch."),
        "samples_sha256": _digest(samples),
        "shard_samples": shard_samples,
    }
    shards = _begun(out, identity)
    starts = range(len(shards) * shard_samples, len(samples), shard_samples)
    for start in tqdm(starts, desc="capture", unit="shard", disable=not progress):
        part = samples[start : start + shard_samples]
        shards.append(_write_shard(part, source, out, len(shards), dtype, batch))
        _write_manifest(out, identity, shards)
    return out


def _write_shard(
    part: Sequence[Sample],
    source: HiddenSource,
    out: Path,
    number: int,
    dtype: torch.dtype,
    batch: int,
) -> Shard:
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    for start in range(0, len(part), batch):
        made = capture_batch(part[start : start + batch], source)
        for row, sample in enumerate(part[start : start + batch]):
            i, n = start + row, len(sample)
            kept = made.hidden[row, :n].to("cpu", dtype).contiguous()
            refuse_not_finite(kept, f"Sample {sample.key or i} of shard {number}")
            tensors[f"hidden.{i}"] = kept
            tensors[f"input_ids.{i}"], tensors[f"loss_mask.{i}"] = (
                sample.input_ids,
                sample.loss_mask,
            )
    name = f"hidden-{number:06d}.safetensors"
    save_file(tensors, out / (name + ".partial"))
    digest = _file_digest(out / (name + ".partial"))
    (out / (name + ".partial")).replace(out / name)
    return Shard(name, len(part), sum(map(len, part)), digest)


class HiddenStore:
    """A finished store, checked before the first batch is taken."""

    def __init__(
        self, out: Path, config: DrafterConfig | None = None, checksums: bool = True
    ) -> None:
        """Refuses a store that is cut short, damaged, or of other layers than ``config`` taps.

        ``checksums`` reads every byte: checksums, and no NaN among the states.
        """
        manifest = read_manifest(out)
        self.out, identity = out, manifest["identity"]
        self.layer_ids = tuple(identity["layer_ids"])
        self.hidden_size = int(identity["hidden_size"])
        self.shards = [Shard(**s) for s in manifest["shards"]]
        if config is not None:
            self._suits(config)
        for shard in self.shards:
            self._whole(shard, checksums)
        self._index = [(s, i) for s, shard in enumerate(self.shards) for i in range(shard.samples)]
        self._open: tuple[int, dict[str, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self._index)

    def _suits(self, config: DrafterConfig) -> None:
        if self.layer_ids != config.target_layer_ids:
            raise StoreError(
                f"{self.out} holds layers {list(self.layer_ids)}, the drafter listens to "
                f"{list(config.target_layer_ids)}; capture again."
            )
        if self.hidden_size != config.hidden_size:
            raise StoreError(
                f"{self.out} holds states {self.hidden_size} wide per layer, the drafter wants "
                f"{config.hidden_size}; it is of another target."
            )

    def _whole(self, shard: Shard, checksums: bool) -> None:
        path = self.out / shard.file
        try:
            header = read_header(path)
        except DrafterError as error:
            raise StoreError(f"The store is damaged: {error}") from error
        for i in range(shard.samples):
            rows = [
                header[f"{n}.{i}"].shape[:1] if f"{n}.{i}" in header else None
                for n in ("hidden", "input_ids", "loss_mask")
            ]
            if None in rows or len(set(rows)) != 1:
                raise StoreError(
                    f"{path}: sample {i} has {rows[0]} rows of hidden states for {rows[1]} tokens; "
                    "capture again with the prefix cache off."
                )
        if checksums and _file_digest(path) != shard.sha256:
            raise StoreError(
                f"{path} does not have the checksum it was written with; capture again."
            )
        if checksums:
            self._finite(path, shard.samples)

    def _finite(self, path: Path, samples: int) -> None:
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            for i in range(samples):
                refuse_not_finite(file.get_tensor(f"hidden.{i}"), f"{path}, sample {i}")

    def item(self, index: int) -> tuple[Sample, Tensor]:
        """Sample ``index`` and its hidden states ``[S, K*H]``."""
        from safetensors.torch import load_file

        shard, i = self._index[index]
        if self._open is None or self._open[0] != shard:
            self._open = (shard, load_file(self.out / self.shards[shard].file))
        tensors = self._open[1]
        key = f"{self.shards[shard].file}#{i}"
        return Sample(tensors[f"input_ids.{i}"], tensors[f"loss_mask.{i}"], key), tensors[
            f"hidden.{i}"
        ]

    def batch(self, indices: Sequence[int]) -> Batch:
        """A padded batch of these samples."""
        items = [self.item(i) for i in indices]
        return collate([s for s, _ in items], [h for _, h in items])


def read_manifest(out: Path) -> dict[str, Any]:
    """The manifest of a store; StoreError where it is none."""
    try:
        manifest = json.loads((out / MANIFEST).read_text("utf-8"))
        manifest["identity"]["layer_ids"], manifest["shards"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{out} is no store of hidden states ({error}); capture into it first."
        ) from error
    return manifest


def _begun(out: Path, identity: dict[str, Any]) -> list[Shard]:
    if not (out / MANIFEST).exists():
        return []
    manifest = read_manifest(out)
    if manifest["identity"] != identity:
        raise StoreError(
            f"{out} was begun with other samples, layers or settings; give an empty directory."
        )
    return [Shard(**s) for s in manifest["shards"]]


def _write_manifest(out: Path, identity: dict[str, Any], shards: Sequence[Shard]) -> None:
    write_json(out / MANIFEST, {"identity": identity, "shards": [asdict(s) for s in shards]})


def _digest(samples: Sequence[Sample]) -> str:
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(sample.input_ids.numpy().tobytes() + sample.loss_mask.numpy().tobytes())
    return digest.hexdigest()


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
