"""The whole pipeline as one value, and a bench of tiny targets to try it on.

A :class:`Pipeline` names every step between a completion and a served token. The checks take a
pipeline and look for what is wrong with it; the fault injection gives them pipelines with one step
replaced. A check that cannot tell the two apart is no check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from casebook.dflash import chat, checkpoint, feed, hidden, metrics, tiny
from casebook.dflash.batch import Batch, Sample
from casebook.dflash.config import DrafterConfig
from casebook.dflash.form import Form
from casebook.dflash.generate import DrafterProposer, Generation, generate, plain
from casebook.dflash.launched import ServeSettings
from casebook.dflash.model import Drafter
from casebook.dflash.target import HFTarget, Rollback
from casebook.dflash.trainer import Trainer, TrainSettings

PROMPT, LENGTH = 6, 30
"""Tokens of the bench's one prompt, and of the completion it is overfitted to."""


def same(drafter: Drafter) -> Drafter:
    """The drafter as it is."""
    return drafter


def to_bf16(drafter: Drafter) -> Drafter:
    """A copy whose weights are bfloat16, as a server holds them."""
    copy = Drafter(drafter.config).to(torch.bfloat16)
    copy.load_state_dict(drafter.state_dict())
    return copy


def capture_ids(target: HFTarget, input_ids: Tensor) -> Tensor:
    """The hidden states the drafter is given while training."""
    return target.capture(input_ids)


def own_head(target: HFTarget) -> Tensor:
    """The target's output head."""
    return target.head


def store_bf16(states: Tensor) -> Tensor:
    """What a store does to hidden states."""
    return states.to(torch.bfloat16)


def as_written(config: dict[str, Any]) -> dict[str, Any]:
    """The exported ``config.json`` as the healthy export writes it."""
    return config


def as_named(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The exported tensors under the published names."""
    return weights


def open_store(out: Path, config: DrafterConfig) -> int:
    """Open a store of hidden states with all its refusals; how many samples it has."""
    return len(hidden.HiddenStore(out, config))


def tau_of(run: Generation) -> float:
    """The acceptance length of one response."""
    return run.tau


def resume(trainer: Trainer, path: Path) -> None:
    """Continue a run."""
    trainer.load(path)


@dataclass(frozen=True)
class Pipeline:
    """Every step; the defaults are this package's own."""

    form: Form = field(default_factory=Form)
    prepare: Callable[[Drafter], Drafter] = same
    cast: Callable[[Drafter], Drafter] = to_bf16
    capture: Callable[[HFTarget, Tensor], Tensor] = capture_ids
    rows: Callable[[list[Sample], HFTarget], Batch] = feed.capture_batch
    head: Callable[[HFTarget], Tensor] = own_head
    stored: Callable[[Tensor], Tensor] = store_bf16
    opened: Callable[[Path, DrafterConfig], int] = open_store
    config: Callable[[dict[str, Any]], dict[str, Any]] = as_written
    tensors: Callable[[dict[str, Tensor]], dict[str, Tensor]] = as_named
    sample: Callable[..., Sample | str] = chat.to_sample
    accept: Callable[[Tensor, Tensor], Tensor] = metrics.accepted
    rollback: Callable[[HFTarget, Any], Rollback] = Rollback
    tau: Callable[[Generation], float] = tau_of
    resume: Callable[[Trainer, Path], None] = resume
    launch: ServeSettings = field(default_factory=lambda: ServeSettings(context_length=256))
    patch: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Entered around every check; a fault uses it to break a function of a module."""


@dataclass(frozen=True)
class Given:
    """A drafter as files, and what is known of its surroundings; unknown parts are None."""

    config: Mapping[str, Any]
    tensors: Mapping[str, checkpoint.TensorInfo] | None = None
    target: Mapping[str, Any] | None = None
    """The target's ``config.json``."""
    trained: DrafterConfig | None = None
    """The configuration it was trained with, where that is known apart from the files."""
    release: str | None = None
    launch: ServeSettings = field(default_factory=ServeSettings)
    training_length: int | None = None
    """Tokens of the longest training sample."""
    text_ids: frozenset[int] | None = None
    """Token ids that occur in the training text."""
    store: Path | None = None
    """A store of hidden states."""
    supervised: tuple[int, int] | None = None
    """Supervised and all tokens of the training store."""


class Bench:
    """Tiny targets, one sample, and the pipeline under test; results are made when first asked for."""

    def __init__(
        self, pipeline: Pipeline, scratch: Path, shared: dict[Any, Any] | None = None
    ) -> None:
        """``shared`` keeps what does not depend on the pipeline's faults between benches."""
        self.pipeline, self.scratch = pipeline, scratch
        self.shared = {} if shared is None else shared
        scratch.mkdir(parents=True, exist_ok=True)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """``make()``, kept in ``shared`` under ``key``."""
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

    @property
    def plain_config(self) -> DrafterConfig:
        """Two full layers, block 4, theta 1e4 (not SGLang's default), three taps of eight layers."""
        return tiny.tiny_config(theta=1e4)

    @property
    def sliding_config(self) -> DrafterConfig:
        """Three layers, two of them with a window of 5 tokens."""
        return tiny.tiny_config(theta=1e4, layers=3, window=5)

    def drafter(self, config: DrafterConfig | None = None, seed: int = 7) -> Drafter:
        """A random drafter, prepared as the pipeline does; weights large enough to matter."""
        wide = (config or self.plain_config).replaced(initializer_range=0.15)
        return self.pipeline.prepare(Drafter(wide).initialize(seed))

    @property
    def target(self) -> HFTarget:
        """The tiny Qwen3."""
        return self.once("qwen3", lambda: tiny.tiny_qwen3(self.plain_config))

    @property
    def hybrid(self) -> HFTarget:
        """The tiny Qwen3.5 with recurrent layers."""
        return self.once("hybrid", lambda: tiny.tiny_hybrid(self.plain_config))

    def prompt(self, seed: int = 0, length: int = PROMPT) -> Tensor:
        """A random prompt without special or mask tokens."""
        return torch.randint(
            2, tiny.MASK_ID, (length,), generator=torch.Generator().manual_seed(seed)
        )

    def greedy(self, which: str, seed: int, tokens: int) -> tuple[int, ...]:
        """The named target's own continuation of prompt ``seed``, by transformers' ``generate``."""

        def make() -> tuple[int, ...]:
            prompt = self.prompt(seed)
            out = getattr(self, which).model.generate(
                prompt[None], max_new_tokens=tokens, do_sample=False, eos_token_id=None
            )
            return tuple(out[0, len(prompt) :].tolist())

        return self.once(("greedy", which, seed, tokens), make)

    @property
    def sample(self) -> Sample:
        """The one sample to overfit: a prompt and the target's own continuation."""

        def make() -> Sample:
            prompt = self.prompt(self.seed)
            answer = torch.tensor(plain(self.target, prompt, LENGTH))
            mask = torch.cat((torch.zeros(PROMPT), torch.ones(LENGTH))).to(torch.uint8)
            return Sample(torch.cat((prompt, answer)), mask, "the bench's sample")

        return self.once("sample", make)

    seed = 3

    def batch(self, samples: list[Sample] | None = None) -> Batch:
        """A batch as the pipeline captures it."""
        samples = samples or [self.sample]
        made = feed.capture_batch(samples, self.target)
        return Batch(
            made.input_ids,
            made.loss_mask,
            self.pipeline.capture(self.target, made.input_ids),
            made.keys,
        )

    def trainer(self, steps: int = 100, drafter: Drafter | None = None) -> Trainer:
        """A trainer of the pipeline's form on the bench's target."""
        settings = TrainSettings(steps, lr=5e-3, gamma=4.0, anchors=64)
        model = drafter or self.pipeline.prepare(Drafter(self.plain_config).initialize(1))
        p = self.pipeline
        return Trainer(model, self.target.embedding, p.head(self.target), settings, p.form)

    def trained(self) -> tuple[Drafter, float]:
        """The overfitted drafter and its training accuracy; trained once per training form."""
        p = self.pipeline
        key = ("trained", p.form, p.prepare, p.capture, p.head, p.patch)

        def make() -> tuple[Drafter, float]:
            trainer = self.trainer()
            batch = self.batch()
            for _ in range(trainer.settings.steps):
                record = trainer.step([batch])
            return trainer.drafter.eval(), record.accuracy_share

        return self.once(key, make)

    def exported(self) -> Path:
        """The trained drafter on disk, through the pipeline's export."""
        import json

        from safetensors.torch import save_file

        directory = self.scratch / "exported"
        if not (directory / "config.json").exists():
            drafter, _ = self.trained()
            checkpoint.save_drafter(drafter, directory)
            config = self.pipeline.config(drafter.config.to_json())
            (directory / "config.json").write_text(json.dumps(config), "utf-8")
            save_file(
                self.pipeline.tensors(checkpoint.read_weights(directory)),
                directory / checkpoint.WEIGHTS,
                metadata={"format": "pt"},
            )
        return directory

    @cached_property
    def given(self) -> Given:
        """The exported drafter as files."""
        from casebook.dflash.config import read_json

        directory = self.exported()
        return Given(
            config=read_json(directory / "config.json"),
            tensors=checkpoint.tensor_infos(directory),
            target=self.target.model.config.to_dict(),
            trained=self.trained()[0].config,
            release="0.5.23",
            launch=self.pipeline.launch,
            training_length=512,
            text_ids=frozenset(self.sample.input_ids.tolist()),
        )

    def served(self) -> Generation:
        """The exported drafter serves the trained sample: what a server would do with these files.

        A field of the configuration that the server reads differently from the trainer acts here;
        tensors under unknown names are ignored, as SGLang does, and keep their initial value.
        """
        directory = self.exported()
        served = self._as_served(directory)
        proposer = DrafterProposer(served, self.target, self.pipeline.launch.draft_tokens)
        prompt = self.prompt(self.seed)
        return generate(
            self.target,
            proposer,
            prompt,
            LENGTH - served.config.block_size,
            accept=self.pipeline.accept,
            rollback=self.pipeline.rollback,
        )

    def _as_served(self, directory: Path) -> Drafter:
        from casebook.dflash.config import read_json, rope_theta_of

        trained = self.trained()[0].config
        data = read_json(directory / "config.json")
        inner = data.get("dflash_config", {})
        config = trained.replaced(
            rope_theta=rope_theta_of(data),
            block_size=inner.get("block_size", trained.block_size),
            mask_token_id=inner.get("mask_token_id", trained.mask_token_id),
        )
        drafter = Drafter(config).initialize(99)
        found = checkpoint.read_weights(directory)
        drafter.load_state_dict(
            {n.removeprefix("model."): t.float() for n, t in found.items()}, strict=False
        )
        return drafter.eval()


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """``module.name`` is ``value`` for a while."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)
