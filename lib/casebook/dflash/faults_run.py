"""Faults of the model, the capture, the data and the training run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from casebook.dflash import bench as healthy
from casebook.dflash import chat, masks
from casebook.dflash.batch import Batch, Sample
from casebook.dflash.config import DrafterConfig
from casebook.dflash.faults_base import fault
from casebook.dflash.hidden import HiddenStore
from casebook.dflash.model import Drafter
from casebook.dflash.target import HFTarget
from casebook.dflash.trainer import Trainer


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


FAULTS = (
    fault(
        "rotary frequencies in bfloat16",
        "https://github.com/NVIDIA-NeMo/Automodel/pull/2859",
        cast=_round_frequencies,
    ),
    fault("fc is not trained", "this project's own runs", prepare=_freeze_fc),
    fault(
        "hidden states one layer early",
        "https://github.com/vllm-project/vllm/pull/40727",
        capture=_one_layer_early,
    ),
    fault("documents packed into one row", "this project's own runs", rows=_packed),
    fault(
        "embedding taken for the head",
        "https://github.com/pegainfer-project/pegainfer/pull/544",
        head=_embedding_as_head,
    ),
    fault("hidden states stored in float8", "this project's own runs", stored=_store_fp8),
    fault(
        "store opened without checks",
        "https://github.com/vllm-project/vllm/issues/44485",
        opened=_open_unchecked,
    ),
    fault("user text is learnt", "this project's own runs", sample=_learn_everything),
    fault("end token is not learnt", "this project's own runs", sample=_forget_end),
    fault("resumed without Adam's moments", "SpecForge commit bcb2ec2", resume=_weights_only),
    fault(
        "bool mask added as a number",
        "https://github.com/vllm-project/speculators/issues/686",
        patch=_mask_as_number,
    ),
)
