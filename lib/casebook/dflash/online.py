"""Online training on several processes: target ranks run the frozen target, drafter ranks train.

::

    torchrun --nproc-per-node 4 -m casebook.dflash.online run.json

With ``target_ranks: 2`` ranks 0 and 1 hold the target and capture hidden states, ranks 2 and 3 train
the drafter with FSDP2, as on the node of the incident. With ``target_ranks: 0`` every rank captures
for itself. Which samples belong to which step follows from the seed, so only hidden states travel.
On GPUs the processes talk by NCCL, else by gloo.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from casebook.dflash.batch import Batch, Sample, collate_tokens
from casebook.dflash.checkpoint import save_drafter
from casebook.dflash.config import DrafterConfig
from casebook.dflash.errors import TargetError, TrainingError
from casebook.dflash.feed import Order, capture_batch
from casebook.dflash.model import Drafter
from casebook.dflash.parallel import Alone, Group, Sharded
from casebook.dflash.target import HFTarget, load_target
from casebook.dflash.tokens import read_samples
from casebook.dflash.trainer import StepRecord, Trainer, TrainSettings
from casebook.errors import CasebookError

METRICS, CHECKPOINT = "metrics.csv", "checkpoint.pt"


@dataclass(frozen=True)
class RunSpec:
    """A run, as its JSON file says it; paths are relative to that file."""

    target: str
    """The target's checkpoint directory, or a ``.gguf`` file."""
    drafter: str
    """A directory with the drafter's ``config.json``."""
    tokens: str
    """A store made by ``tokenize_completions``."""
    out: str
    settings: dict[str, Any]
    """Fields of :class:`TrainSettings`."""
    batch: int = 1
    accumulate: int = 1
    target_ranks: int = 0
    save_every: int = 500
    stop_after: int | None = None
    """End (with a checkpoint) after this step; None runs to the last."""
    init_seed: int = 0
    dtype: str = "float32"
    """The target's dtype."""
    where: Path = field(default=Path(), compare=False)

    @classmethod
    def read(cls, path: Path) -> RunSpec:
        """The run in ``path``; TrainingError names a key that is unknown or missing."""
        try:
            data = json.loads(path.read_text("utf-8"))
            unknown = set(data) - {f.name for f in fields(cls)}
            if unknown:
                raise TrainingError(f"{path} has unknown keys: {', '.join(sorted(unknown))}.")
            return cls(**data, where=path.resolve().parent)
        except (OSError, ValueError, TypeError) as error:
            raise TrainingError(f"{path} is no description of a run: {error}.") from error

    def path(self, name: str) -> Path:
        """One of the spec's paths, against the file's own folder."""
        return self.where / getattr(self, name)


def load_ends(path: Path, dtype: torch.dtype) -> tuple[nn.Module, Tensor]:
    """The target's embedding and head alone, for ranks that do not hold the target.

    Reads two tensors of a safetensors checkpoint; the whole model where that is not possible
    (GGUF, scaled embeddings).
    """
    from safetensors import safe_open

    config = json.loads((path / "config.json").read_text("utf-8")) if path.is_dir() else {}
    if not config or "gemma" in str(config.get("model_type")):
        whole = load_target(path, [], dtype)
        return whole.embedding, whole.head
    found: dict[str, Tensor] = {}
    for shard in sorted(path.glob("*.safetensors")):
        with safe_open(shard, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                for end in ("embed_tokens.weight", "lm_head.weight"):
                    if name.endswith(end) and "visual" not in name:
                        found[end] = file.get_tensor(name).to(dtype)
    if "embed_tokens.weight" not in found:
        raise TargetError(f"{path} holds no embed_tokens.weight; give a whole checkpoint.")
    embedding = nn.Embedding.from_pretrained(found["embed_tokens.weight"], freeze=True)
    return embedding, found.get("lm_head.weight", found["embed_tokens.weight"])


@dataclass(frozen=True)
class Roles:
    """Who does what."""

    rank: int
    size: int
    targets: int

    @property
    def is_target(self) -> bool:
        """Whether this rank only captures."""
        return self.rank < self.targets

    @property
    def drafters(self) -> list[int]:
        """The ranks that train."""
        return list(range(self.targets, self.size))

    def feeder(self, drafter: int) -> int:
        """The target rank that feeds ``drafter`` (a global rank)."""
        return (drafter - self.targets) % self.targets


def run(spec: RunSpec) -> list[StepRecord]:
    """Train as ``spec`` says, as one of torchrun's processes or alone; the records of this run.

    Continues from ``out/checkpoint.pt`` where there is one. Rank by rank the same file is read.
    """
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    roles = Roles(rank, size, spec.target_ranks)
    if size - roles.targets < 1:
        raise TrainingError(f"{spec.target_ranks} target ranks of {size} leave none to train.")
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    group = _join(roles, device)
    try:
        settings = TrainSettings(
            **{**spec.settings, "betas": tuple(spec.settings.get("betas", (0.9, 0.999)))}
        )
        config = DrafterConfig.read(spec.path("drafter"))
        samples = read_samples(spec.path("tokens"))
        order = Order(len(samples), spec.batch, spec.accumulate, len(roles.drafters), settings.seed)
        last = min(settings.steps, spec.stop_after or settings.steps)
        first = _done(spec.path("out") / CHECKPOINT)
        if roles.is_target:
            _serve(spec, roles, config, samples, order, range(first, last), device)
            return []
        return _train(
            spec, roles, group, config, settings, samples, order, range(first, last), device
        )
    finally:
        if size > 1:
            torch.distributed.destroy_process_group()


def _join(roles: Roles, device: torch.device) -> Group:
    if roles.size == 1:
        return Alone()
    import torch.distributed as dist

    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    drafters = dist.new_group(roles.drafters)  # every rank must call it
    return (
        Alone() if roles.is_target or len(roles.drafters) == 1 else Sharded(drafters, device.type)
    )


def _done(path: Path) -> int:
    return (
        int(torch.load(path, map_location="cpu", weights_only=True)["done"]) if path.exists() else 0
    )


def _serve(
    spec: RunSpec, roles: Roles, config: DrafterConfig, samples: list[Sample], order: Order,
    steps: range, device: torch.device,
) -> None:  # fmt: skip
    """A target rank: capture and send, step by step, to the drafter ranks it feeds."""
    import torch.distributed as dist

    target = _load(spec, config, device)
    for step in steps:
        for micro in range(order.accumulate):
            for drafter in roles.drafters:
                if roles.feeder(drafter) != roles.rank:
                    continue
                chosen = order.indices(step, drafter - roles.targets)[micro]
                ids, _ = collate_tokens([samples[i] for i in chosen])
                dist.send(target.capture(ids.to(device)).contiguous(), drafter)


def _load(spec: RunSpec, config: DrafterConfig, device: torch.device) -> HFTarget:
    target = load_target(spec.path("target"), config.target_layer_ids, getattr(torch, spec.dtype))
    target.suits(config)
    target.model.to(device)
    return target


def _batches(
    spec: RunSpec, roles: Roles, config: DrafterConfig, samples: list[Sample], order: Order,
    steps: range, device: torch.device, target: HFTarget | None,
) -> Iterator[list[Batch]]:  # fmt: skip
    """A drafter rank's micro-batches: captured here, or received."""
    import torch.distributed as dist

    for step in steps:
        made = []
        for micro in order.indices(step, roles.rank - roles.targets):
            chosen = [samples[i] for i in micro]
            if target is not None:
                batch = capture_batch(chosen, target)
            else:
                ids, mask = collate_tokens(chosen)
                hidden = torch.empty(
                    *ids.shape,
                    config.context_width,
                    dtype=getattr(torch, spec.dtype),
                    device=device,
                )
                dist.recv(hidden, roles.feeder(roles.rank))
                batch = Batch(ids, mask, hidden, tuple(s.key for s in chosen))
            made.append(
                Batch(
                    batch.input_ids.to(device), batch.loss_mask.to(device), batch.hidden, batch.keys
                )
            )
        yield made


def _train(
    spec: RunSpec, roles: Roles, group: Group, config: DrafterConfig, settings: TrainSettings,
    samples: list[Sample], order: Order, steps: range, device: torch.device,
) -> list[StepRecord]:  # fmt: skip
    out = spec.path("out")
    out.mkdir(parents=True, exist_ok=True)
    target = None if roles.targets else _load(spec, config, device)
    if target is not None:
        embedding, head = target.embedding, target.head
    else:
        embedding, head = load_ends(spec.path("target"), getattr(torch, spec.dtype))
        embedding, head = embedding.to(device), head.to(device)
    if head.shape != (config.vocab_size, config.hidden_size):
        raise TargetError(
            f"The target's head is {list(head.shape)}, the drafter wants {[config.vocab_size, config.hidden_size]}."
        )
    drafter = Drafter(config).initialize(spec.init_seed).to(device)
    trainer = Trainer(drafter, embedding, head, settings, group=group, rescue=out)
    if steps.start:
        trainer.load(out / CHECKPOINT)
    records = []
    bar = tqdm(steps, desc="train", unit="step", disable=group.rank != 0)
    for batches in _batches(spec, roles, config, samples, order, steps, device, target):
        record = trainer.step(batches)
        records.append(record)
        if group.rank == 0:
            append_metrics(out / METRICS, record)
            bar.update()
            bar.set_postfix(loss=f"{record.loss_nats:.3f}", tau=f"{record.tau_tokens:.2f}")
        if trainer.done % spec.save_every == 0 or trainer.done == steps.stop:
            trainer.save(out / CHECKPOINT)
    bar.close()
    if trainer.done == settings.steps:
        weights, _ = group.gather(trainer.drafter, trainer.optimizer)
        if group.rank == 0:
            whole = Drafter(config)
            whole.load_state_dict(weights)
            save_drafter(whole, out / "drafter")
    group.wait()
    return records


def append_metrics(path: Path, record: StepRecord) -> None:
    """One row a step; the header on the first."""
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [f.name for f in fields(record)])
        if new:
            writer.writeheader()
        writer.writerow(asdict(record))


def main() -> None:
    """``python -m casebook.dflash.online run.json``, under torchrun or alone."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: torchrun -m casebook.dflash.online RUN.json")
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    try:
        run(RunSpec.read(Path(sys.argv[1])))
    except CasebookError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
