"""Training a drafter: one step, over any number of micro-batches and processes, and its way to disk.

What makes it exact:

* The loss is normalised once a step, by the weights of *all* micro-batches on *all* ranks; a mean per
  micro-batch would count a short text's tokens for more.
* A micro-batch draws its anchors from a seed made of (run seed, its global number), so the same data
  on 1 process x 4 and on 2 x 2 trains the same, and a resumed run draws what the other would have.
* Weights and Adam's moments are float32; with ``bf16`` only the arithmetic is narrower.

Defaults are SpecForge's recipe for Qwen3.6-27B (lr 6e-4, cosine to 0 after 4 % warm-up, clip 1.0, no
weight decay, 512 anchors, gamma 7 at block size 16).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from casebook.dflash.attention import Backend
from casebook.dflash.batch import Batch, refuse_bad_batch
from casebook.dflash.errors import TrainingError
from casebook.dflash.form import Form
from casebook.dflash.metrics import training_lengths
from casebook.dflash.model import Drafter
from casebook.dflash.parallel import Alone, Group


@dataclass(frozen=True)
class TrainSettings:
    """What a run is told. Lengths are in tokens or steps."""

    steps: int
    lr: float = 6e-4
    warmup_share: float = 0.04
    min_lr_share: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip: float = 1.0
    anchors: int = 512
    gamma: float | None = 7.0
    backend: Backend = "split"
    bf16: bool = False
    seed: int = 0


@dataclass(frozen=True)
class StepRecord:
    """One step, as it goes into the metrics file."""

    step: int
    loss_nats: float
    accuracy_share: float
    tau_tokens: float
    """Mean A + 1 over the blocks scored whole; NaN where there was none."""
    lr: float
    gradient_norm: float
    scored_slots: int
    tokens: int
    seconds: float


def learning_rate(step: int, settings: TrainSettings) -> float:
    """The rate of step 1..steps: linear warm-up, then a cosine down to ``min_lr_share``."""
    warmup = settings.warmup_share * settings.steps
    if step <= warmup:
        return settings.lr * step / max(warmup, 1e-9)
    share = min(1.0, (step - warmup) / max(settings.steps - warmup, 1))
    low = settings.min_lr_share
    return settings.lr * (low + (1 - low) * (1 + math.cos(math.pi * share)) / 2)


class Trainer:
    """Holds the drafter and its optimiser; ``step`` is one update."""

    def __init__(
        self,
        drafter: Drafter,
        embedding: nn.Module,
        head: Tensor,
        settings: TrainSettings,
        form: Form | None = None,
        group: Group | None = None,
        rescue: Path | None = None,
    ) -> None:
        """``embedding`` and ``head`` are the target's, frozen. ``rescue`` is where a bad batch is kept."""
        self.settings, self.form, self.group = settings, form or Form(), group or Alone()
        self.embedding, self.rescue = embedding, rescue
        # Frozen, so it is narrowed once; autocast would do it again for each piece of the loss.
        self.head = head.detach().to(torch.bfloat16) if settings.bf16 else head.detach()
        self.drafter = self.group.spread(drafter.float().train())
        self.parameters = list(self.drafter.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=settings.lr,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.done = 0

    def step(self, batches: Sequence[Batch]) -> StepRecord:
        """One update from this rank's micro-batches of the step."""
        started = time.perf_counter()
        self.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(6, dtype=torch.float64)
        for number, batch in enumerate(batches):
            sums += self._accumulate(batch, self._micro_number(number, len(batches)))
        numerator, denominator, correct, scored, length, whole = self.group.total(sums).tolist()
        if not math.isfinite(numerator):
            self._stop("The loss is not finite", batches)
        if denominator == 0:
            raise TrainingError("No slot of this step is scored; check the loss mask.")
        norm = self.group.finish_gradients(self.parameters, denominator, self.settings.clip)
        if not math.isfinite(norm):
            self._stop("The gradient is not finite", batches)
        self.done += 1
        rate = learning_rate(self.done, self.settings)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        return StepRecord(
            step=self.done,
            loss_nats=numerator / denominator,
            accuracy_share=correct / scored,
            tau_tokens=length / whole if whole else float("nan"),
            lr=rate,
            gradient_norm=norm,
            scored_slots=int(scored),
            tokens=sum(b.input_ids.numel() for b in batches) * self.group.size,
            seconds=time.perf_counter() - started,
        )

    def _micro_number(self, number: int, count: int) -> int:
        """The global number of this rank's micro-batch: ranks take turns over a step's batches."""
        return (self.done * count + number) * self.group.size + self.group.rank

    def _accumulate(self, batch: Batch, micro: int) -> Tensor:
        s = self.settings
        refuse_bad_batch(batch, self.drafter.config)
        generator = torch.Generator().manual_seed(_mixed(s.seed, micro))
        blocks = self.form.blocks(self.drafter, batch, s.anchors, generator)
        device = batch.input_ids.device.type
        with torch.autocast(device, torch.bfloat16, enabled=s.bf16):
            terms = self.form.terms(
                self.drafter, self.embedding, self.head, batch, blocks, s.gamma, s.backend
            )
        terms.numerator.backward()
        lengths = training_lengths(terms.predicted, terms.labels, terms.mask)
        values = (
            *(terms.numerator.detach(), terms.denominator, terms.correct, terms.scored),
            *(lengths.sum(), lengths.new_tensor(len(lengths))),
        )
        return torch.stack(values).double().cpu()

    def _stop(self, what: str, batches: Sequence[Batch]) -> None:
        kept = ""
        if self.rescue is not None:
            path = self.rescue / f"bad-step-{self.done + 1}-rank-{self.group.rank}.safetensors"
            save_batches(batches, path)
            kept = f"; the batch is in {path}"
        raise TrainingError(f"{what} at step {self.done + 1}{kept}. No update was made.")

    # --- checkpoints ---------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Everything the next step depends on, written beside and renamed."""
        weights, moments = self.group.gather(self.drafter, self.optimizer)
        if self.group.rank == 0:
            state = {
                "weights": weights,
                "optimizer": moments,
                "done": self.done,
                "settings": asdict(self.settings),
                "config": self.drafter.config.to_json(),
            }
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(path.name + ".partial")
            torch.save(state, partial)
            partial.replace(path)
        self.group.wait()

    def load(self, path: Path) -> None:
        """Continue from :meth:`save`; refused where the run's settings or drafter are others."""
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            kept, config = dict(state["settings"]), state["config"]
        except (OSError, KeyError, RuntimeError, EOFError, ValueError, TypeError) as error:
            raise TrainingError(f"{path} is no checkpoint of a run ({error}).") from error
        except Exception as error:  # the unpickler's own errors have no common base
            raise TrainingError(f"{path} cannot be read as a checkpoint ({error}).") from error
        kept["betas"] = tuple(kept["betas"])
        if kept != asdict(self.settings):
            changed = sorted(k for k, v in asdict(self.settings).items() if kept.get(k) != v)
            raise TrainingError(f"{path} is of a run with other settings: {', '.join(changed)}.")
        if config != self.drafter.config.to_json():
            raise TrainingError(f"{path} is of another drafter; resume with its own configuration.")
        self.group.scatter(self.drafter, self.optimizer, state["weights"], state["optimizer"])
        self.done = int(state["done"])


def save_batches(batches: Sequence[Batch], path: Path) -> None:
    """Keep batches for a post-mortem."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for i, b in enumerate(batches):
        for name in ("input_ids", "loss_mask", "hidden"):
            tensors[f"{name}.{i}"] = getattr(b, name).cpu().contiguous()
    save_file(tensors, path)


def _mixed(seed: int, number: int) -> int:
    """One seed from two numbers (splitmix64's finisher), so that neighbours share nothing."""
    x = (seed * 0x9E3779B97F4A7C15 + number * 0xBF58476D1CE4E5B9 + 1) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return (x ^ (x >> 31)) % 2**63
