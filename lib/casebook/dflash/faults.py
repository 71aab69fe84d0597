"""Proof that the checks can fail: faults people have reported, injected one at a time.

Each fault replaces one step of the healthy pipeline. All 32 checks then run over the broken
pipeline; at least one must notice, and none may fire on the healthy one. A check that reads no
field the fault replaces cannot answer otherwise than on the healthy pipeline, so its answer is
taken from there: which fields a check reads is recorded while it runs, not declared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from tqdm.auto import tqdm

from casebook.dflash import bench as healthy
from casebook.dflash import chat, form, loss, masks, metrics
from casebook.dflash.anchors import valid_anchors
from casebook.dflash.batch import Batch, Sample
from casebook.dflash.bench import Bench, Launch, Pipeline
from casebook.dflash.checks import CHECKS, run_on_bench
from casebook.dflash.checks_base import Check, Finding, State
from casebook.dflash.config import DrafterConfig
from casebook.dflash.errors import NoAnchorError
from casebook.dflash.generate import Generation
from casebook.dflash.hidden import HiddenStore
from casebook.dflash.loss import LossTerms
from casebook.dflash.masks import Blocks
from casebook.dflash.model import Drafter
from casebook.dflash.target import HFTarget, Rollback
from casebook.dflash.trainer import Trainer


@dataclass(frozen=True)
class Fault:
    """One way to get it wrong."""

    name: str
    source: str
    """Where it happened."""
    change: Callable[[Pipeline], Pipeline]


FAULTS: list[Fault] = []


def _fault(name: str, source: str, **changes: Any) -> None:
    """Register a fault; names that are fields of the training form go there."""
    of_form = {f.name for f in fields(form.Form)}
    inner = {k: v for k, v in changes.items() if k in of_form}
    outer = {k: v for k, v in changes.items() if k not in of_form}

    def change(pipeline: Pipeline) -> Pipeline:
        if inner:
            pipeline = replace(pipeline, form=replace(pipeline.form, **inner))
        return replace(pipeline, **outer)

    FAULTS.append(Fault(name, source, change))


# --- the training form --------------------------------------------------------------------------


def _see_anchor(
    a: Tensor, s: Tensor, k: Tensor, same: Tensor, context: int, window: int | None
) -> Tensor:
    return masks.may_see(a, s, k, same, context, window) | ((k < context) & (k == a))


def _see_causally(
    a: Tensor, s: Tensor, k: Tensor, same: Tensor, context: int, window: int | None
) -> Tensor:
    seen = masks.may_see(a, s, k, same, context, window)
    return seen & ((k < context) | (k - context <= s))


def _see_both_ways(
    a: Tensor, s: Tensor, k: Tensor, same: Tensor, context: int, window: int | None
) -> Tensor:
    return masks.may_see(a, s, k, same, context, window) | ((k >= context) & same)


def _see_whole_text(
    a: Tensor, s: Tensor, k: Tensor, same: Tensor, context: int, window: int | None
) -> Tensor:
    later = (k < context) & (
        k > a + 4
    )  # as blocks that share a row would look at each other's text
    return masks.may_see(a, s, k, same, context, window) | later


def _shifted_labels(input_ids: Tensor, blocks: Blocks) -> Tensor:
    at = (blocks.positions() + 1).clamp(max=input_ids.shape[1] - 1)
    return input_ids.gather(1, at).unflatten(1, (-1, blocks.block_size))


def _positions_off(blocks: Blocks) -> Tensor:
    return blocks.positions() + 1


def _labels_in_block(input_ids: Tensor, blocks: Blocks, mask_token_id: int) -> Tensor:
    ids = form.block_ids(input_ids, blocks, mask_token_id)
    clean = loss.labels(input_ids, blocks)
    return torch.cat((ids.view_as(clean)[..., :2], clean[..., 2:]), -1).flatten(1)


def _neighbour_in_block(input_ids: Tensor, blocks: Blocks, mask_token_id: int) -> Tensor:
    ids = form.block_ids(input_ids, blocks, mask_token_id).view(
        len(input_ids), -1, blocks.block_size
    )
    ids = ids.clone()
    ids[:, :, -1] = ids[:, :, 0].roll(1, 1)  # the block before: wrong stride when packing
    return ids.flatten(1)


def _old_anchors(
    mask: Tensor, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """As before SpecForge#731: one anchor fewer than there are, and batch mates share the draw."""
    valid = valid_anchors(mask)
    counts = valid.sum(1)
    width = min(count, int(counts.max()) - 1)
    if width < 1:
        raise NoAnchorError("No anchor.")
    scores = torch.rand(valid.shape, generator=generator).masked_fill(~valid, 2.0)
    keep = torch.arange(width)[None] < (counts - 1)[:, None]
    return scores.argsort(1)[:, :width].masked_fill(~keep, 0).sort(1).values, keep


def _anchor_scored(loss_mask: Tensor, blocks: Blocks) -> Tensor:
    wanted = loss.label_mask(loss_mask, blocks)
    wanted[..., 0] = blocks.keep.float()
    return wanted


def _no_decay(block_size: int, gamma: float | None) -> Tensor:  # noqa: ARG001
    return torch.ones(block_size)


def _mean_each(terms: LossTerms) -> LossTerms:
    one = torch.ones_like(terms.denominator)
    return replace(terms, numerator=terms.numerator / terms.denominator, denominator=one)


SPECFORGE = "https://github.com/sgl-project/SpecForge"
_fault("labels shifted by one", f"{SPECFORGE}/issues/455", labels=_shifted_labels)
_fault("context includes the anchor's hidden state", f"{SPECFORGE}/pull/473", see=_see_anchor)
_fault("context includes text after the block", "DFLASH.md check 1", see=_see_whole_text)
_fault("in-block attention causal in training", f"{SPECFORGE}/pull/427", see=_see_causally)
_fault(
    "sliding layers trained both ways",
    "https://github.com/z-lab/dflash/issues/126",
    see=_see_both_ways,
)
_fault("block positions off by one", f"{SPECFORGE}/issues/533", positions=_positions_off)
_fault("labels given to the block", "DFLASH.md check 2", ids=_labels_in_block)
_fault("a block sees its neighbour's anchor", "DFLASH.md check 3", ids=_neighbour_in_block)
_fault("old anchor rule", f"{SPECFORGE}/pull/731", anchors=_old_anchors)
_fault("the anchor slot is scored", f"{SPECFORGE}/pull/463", mask=_anchor_scored)
_fault("decay is ignored", f"{SPECFORGE}/pull/463", weights=_no_decay)
_fault("mean per micro-batch", f"{SPECFORGE}/pull/731", reduce=_mean_each)


# --- model, capture and data --------------------------------------------------------------------


def _round_frequencies(drafter: Drafter) -> Drafter:
    cast = healthy.to_bf16(drafter)
    device = torch.device("cpu")
    cast.rotary._by_device[device] = cast.rotary.inv_freq(device).bfloat16()
    return cast


def _freeze_fc(drafter: Drafter) -> Drafter:
    drafter.fc.weight.requires_grad_(False)
    return drafter


def _one_layer_early(target: HFTarget, input_ids: Tensor) -> Tensor:
    early = HFTarget(target.model, [i - 1 for i in target.layer_ids])
    return early.capture(input_ids)


def _packed(samples: list[Sample], target: HFTarget) -> Batch:
    ids = torch.cat([s.input_ids for s in samples])[None]
    mask = torch.cat([s.loss_mask for s in samples])[None]
    return Batch(ids, mask, target.capture(ids))


def _embedding_as_head(target: HFTarget) -> Tensor:
    return target.model.get_input_embeddings().weight


def _store_fp8(states: Tensor) -> Tensor:
    return states.to(torch.float8_e4m3fn)


def _open_unchecked(out: Path, config: DrafterConfig) -> int:  # noqa: ARG001
    return sum(s.samples for s in HiddenStore(out, None, checksums=False).shards)


def _learn_everything(
    record: Any, tokenizer: Any, settings: chat.ChatSettings, key: str = ""
) -> Sample | str:
    made = chat.to_sample(record, tokenizer, settings, key)
    return (
        made if isinstance(made, str) else replace(made, loss_mask=torch.ones_like(made.loss_mask))
    )


def _forget_end(
    record: Any, tokenizer: Any, settings: chat.ChatSettings, key: str = ""
) -> Sample | str:
    made = chat.to_sample(record, tokenizer, settings, key)
    if isinstance(made, str):
        return made
    return replace(made, input_ids=made.input_ids[:-1], loss_mask=made.loss_mask[:-1])


def _weights_only(trainer: Trainer, path: Path) -> None:
    state = torch.load(path, weights_only=True)
    trainer.drafter.load_state_dict(state["weights"])
    trainer.done = state["done"]


def _mask_as_number() -> AbstractContextManager[Any]:
    return healthy.replaced(masks, "additive", lambda mask, dtype: mask.to(dtype))


_fault(
    "rotary frequencies in bfloat16",
    "https://github.com/NVIDIA-NeMo/Automodel/pull/2859",
    cast=_round_frequencies,
)
_fault("fc is not trained", "DFLASH.md check 20", prepare=_freeze_fc)
_fault(
    "hidden states one layer early",
    "https://github.com/vllm-project/vllm/pull/40727",
    capture=_one_layer_early,
)
_fault("documents packed into one row", "DFLASH.md section 2.5", rows=_packed)
_fault(
    "embedding taken for the head",
    "https://github.com/pegainfer-project/pegainfer/pull/544",
    head=_embedding_as_head,
)
_fault("hidden states stored in float8", "DFLASH.md check 27", stored=_store_fp8)
_fault(
    "store opened without checks",
    "https://github.com/vllm-project/vllm/issues/44485",
    opened=_open_unchecked,
)
_fault("user text is learnt", "DFLASH.md section 2.5", sample=_learn_everything)
_fault("end token is not learnt", "DFLASH.md section 2.5", sample=_forget_end)
_fault("resumed without Adam's moments", "SpecForge commit bcb2ec2", resume=_weights_only)
_fault(
    "bool mask added as a number",
    "https://github.com/vllm-project/speculators/issues/686",
    patch=_mask_as_number,
)


# --- export, launch and serving -----------------------------------------------------------------


def _with(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A config edit: top-level keys, and ``dflash_*`` ones inside ``dflash_config``; None removes."""

    def edit(config: dict[str, Any]) -> dict[str, Any]:
        config = {**config, "dflash_config": dict(config["dflash_config"])}
        for key, value in changes.items():
            inside = key.startswith("dflash_")
            home = config["dflash_config"] if inside else config
            name = key.removeprefix("dflash_")
            if value is None:
                home.pop(name, None)
            else:
                home[name] = value
        return config

    return edit


def _prefixed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"draft_model.{name}": tensor for name, tensor in weights.items()}


def _layer_lost(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights.items() if not name.startswith("layers.1.")}


def _with_embedding(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return weights | {"embed_tokens.weight": torch.zeros(97, 32)}


class _CutOnly(Rollback):
    """Cuts the attention layers and leaves the recurrent ones as they are."""

    def keep(self, tokens: Tensor) -> None:
        surplus = self.cache.get_seq_length() - self.length - tokens.shape[1]
        for layer in self.cache.layers:
            if getattr(layer, "keys", None) is not None and surplus:
                layer.keys, layer.values = (
                    layer.keys[..., :-surplus, :],
                    layer.values[..., :-surplus, :],
                )


def _any_match(drafted: Tensor, target: Tensor) -> Tensor:
    return (drafted == target).sum(-1)


def _without_bonus(run: Generation) -> float:
    return metrics.zlab_tau([run.whole_steps]) - 1


_theta = _with(rope_theta=1e6, rope_parameters={"rope_type": "default", "rope_theta": 1e6})
_fault(
    "another rope base in the export",
    "https://github.com/sgl-project/sglang/pull/27477",
    config=_theta,
)
_fault(
    "partial rotary factor of the target copied",
    "https://github.com/vllm-project/speculators/issues/613",
    config=_with(partial_rotary_factor=0.25),
)
_fault(
    "another mask id in the export", f"{SPECFORGE}/pull/604", config=_with(dflash_mask_token_id=95)
)
_fault(
    "the end token as mask",
    "https://github.com/NVIDIA-NeMo/Automodel/pull/2461",
    config=_with(dflash_mask_token_id=1),
)
_fault("served with another block size", "SGLang 0.5.11 dflash_worker.py", launch=Launch(6, 256))
_fault(
    "served beyond the trained length",
    "https://github.com/spiritbuun/buun-llama-cpp/issues/32",
    launch=Launch(None, 4096),
)
_fault(
    "number of target layers not written",
    "SGLang up to 0.5.15 dflash_utils.py",
    config=_with(num_target_layers=None),
)
_fault(
    "a tap on the last layer",
    "https://github.com/lightseekorg/TorchSpec/issues/87",
    config=_with(dflash_target_layer_ids=[1, 3, 7]),
)
_fault(
    "full layers exported as sliding",
    "https://github.com/sgl-project/sglang/pull/34524",
    config=_with(layer_types=["sliding_attention"] * 2, sliding_window=5, use_sliding_window=True),
)
_fault("tensor names with a prefix", "SGLang load_weights", tensors=_prefixed)
_fault("a layer left out of the export", "SGLang load_weights", tensors=_layer_lost)
_fault("embedding in the export", "DFLASH.md check 20", tensors=_with_embedding)
_fault(
    "hybrid state not rolled back",
    "https://github.com/huggingface/transformers/pull/45513",
    rollback=_CutOnly,
)
_fault(
    "any match accepted, not the leading ones",
    "https://github.com/z-lab/dflash/issues/57",
    accept=_any_match,
)
_fault("acceptance length without the bonus", "DFLASH.md section 3.2", tau=_without_bonus)


# --- the table ----------------------------------------------------------------------------------


class _Watched(Pipeline):
    """A pipeline that remembers which of its fields were read."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if not name.startswith("_"):
            super().__getattribute__("_seen").add(name)
        return value

    @classmethod
    def of(cls, pipeline: Pipeline) -> _Watched:
        """The same pipeline, watched."""
        made = cls.__new__(cls)
        object.__setattr__(made, "_seen", set())
        for f in fields(Pipeline):
            object.__setattr__(made, f.name, getattr(pipeline, f.name))
        object.__getattribute__(made, "_seen").clear()
        return made

    def read(self) -> set[str]:
        """The fields that were read."""
        return set(object.__getattribute__(self, "_seen")) - {"read", "patch"}


@dataclass(frozen=True)
class Proof:
    """What every check said of every pipeline; the first pipeline is ``healthy``."""

    findings: dict[str, dict[int, Finding]]
    """Pipeline, check number, finding."""
    sources: dict[str, str]
    """Where each fault was seen."""

    def table(self) -> pd.DataFrame:
        """Pipelines by checks: ``pass``, ``fail`` or ``not applicable``."""
        return pd.DataFrame(
            {name: {n: str(f.state) for n, f in row.items()} for name, row in self.findings.items()}
        ).T

    def failures(self) -> pd.DataFrame:
        """Every failure with its evidence, one a row."""
        rows = [
            (name, n, f.detail, self.sources.get(name, ""))
            for name, row in self.findings.items()
            for n, f in row.items()
            if f.state is State.FAIL
        ]
        return pd.DataFrame(rows, columns=["fault", "check", "detail", "source"])

    def overfitted(self) -> pd.DataFrame:
        """Training accuracy and served acceptance length, of the healthy pipeline and of every fault
        that reaches training, export or serving (the others are served as the healthy one)."""
        sound = self.findings["healthy"][29]
        rows = {
            name: dict(row[29].figures)
            for name, row in self.findings.items()
            if row[29].figures and (name == "healthy" or row[29] is not sound)
        }
        return pd.DataFrame(rows).T

    def unnoticed(self) -> list[str]:
        """Faults that no check noticed."""
        table = self.table().drop(index="healthy")
        return table.index[~(table == "fail").any(axis=1)].tolist()

    def unproven(self) -> list[int]:
        """Checks that no fault made fail."""
        table = self.table().drop(index="healthy")
        return [int(c) for c in table if not (table[c] == "fail").any()]


def prove(scratch: Path, faults: Iterable[Fault] | None = None, progress: bool = True) -> Proof:
    """Run every fault (default: all) against every check; ``scratch`` takes the exported files."""
    chosen = list(FAULTS if faults is None else faults)
    shared: dict[Any, Any] = {}
    sound = Pipeline()
    known: dict[int, tuple[Finding, set[str]]] = {}
    with tqdm(total=len(chosen) + 1, desc="faults", unit="fault", disable=not progress) as bar:
        for check in CHECKS:
            watched = _Watched.of(sound)
            found = run_on_bench(check, Bench(watched, scratch / f"healthy-{check.number}", shared))
            known[check.number] = (found, watched.read())
        rows = {"healthy": {n: f for n, (f, _) in known.items()}}
        bar.update()
        for number, fault in enumerate(chosen):
            rows[fault.name] = _row(fault, sound, known, scratch / f"fault-{number}", shared)
            bar.update()
    return Proof(rows, {f.name: f.source for f in chosen})


def _row(
    fault: Fault,
    sound: Pipeline,
    known: dict[int, tuple[Finding, set[str]]],
    scratch: Path,
    shared: dict[Any, Any],
) -> dict[int, Finding]:
    """All checks over one broken pipeline; answers that cannot differ are the healthy one's."""
    broken = fault.change(sound)
    changed = {
        f.name for f in fields(Pipeline) if getattr(broken, f.name) != getattr(sound, f.name)
    }
    bench = Bench(broken, scratch, shared)
    return {
        c.number: run_on_bench(c, bench) if _concerned(c, changed, known) else known[c.number][0]
        for c in CHECKS
    }


def _concerned(check: Check, changed: set[str], known: dict[int, tuple[Finding, set[str]]]) -> bool:
    return "patch" in changed or bool(changed & known[check.number][1])


__all__ = ["FAULTS", "Fault", "Proof", "prove"]
