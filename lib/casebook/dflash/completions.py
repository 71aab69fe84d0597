"""Completions by the target itself: a drafter must learn the target's words, not somebody else's.

Prompts are rendered by the target's own chat template and continued greedily in batches; the
generated token ids are kept beside the text, so that tokenising never has to guess them back.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

from casebook.dflash.chat import render_prompt
from casebook.dflash.errors import StoreError
from casebook.dflash.target import HFTarget
from casebook.paths import data_dir

_BEGINS = b'{"messages": '  # each record, as we write it


def prompts(path: Path | None = None) -> tuple[list[str], list[str]]:
    """Training and held-out prompts: templates x subjects of ``data/dflash/prompts.toml``."""
    path = path or data_dir() / "dflash" / "prompts.toml"
    try:
        data = tomllib.loads(path.read_text("utf-8"))
        train, held = (
            [t.format(s) for s in data[key] for t in data["templates"]]
            for key in ("subjects", "held_out")
        )
    except (OSError, KeyError, ValueError) as error:
        raise StoreError(f"{path} holds no prompts ({error}).") from error
    if shared := set(train) & set(held):
        raise StoreError(f"{path}: {sorted(shared)[0]!r} is both trained and held out.")
    return train, held


def spread(texts: Sequence[str], count: int) -> list[str]:
    """``count`` of ``texts`` (all, if there are fewer), in their order, spread over all and of each kind.

    Prompts are templates x subjects. Every n-th of them may be one template; steps of a length that
    has no factor in common with their number visit all templates alike.
    """
    number = len(texts)
    golden = range(int(number * 0.618), number + 1)  # leaves even gaps for most numbers
    step = next((s for s in golden if math.gcd(s, number) == 1), 1)
    return [texts[i] for i in sorted(k * step % number for k in range(min(count, number)))]


def generate_completions(
    target: HFTarget,
    tokenizer: Any,
    texts: Sequence[str],
    out: Path,
    max_new_tokens: int = 64,
    batch: int = 96,
    progress: bool = True,
    bf16: bool = False,
) -> Path:
    """Continue every prompt greedily and append ``{messages, completion, completion_ids}`` to ``out``.

    Rows that are already there are kept, so a stopped run goes on where it was. ``bf16`` generates in
    bfloat16 arithmetic: quicker on a GPU, or on a CPU with AMX, and now and then another word than
    float32 would choose. Raises StoreError where ``out`` holds other prompts, or of other settings.
    """
    made = {"max_new_tokens": max_new_tokens, "bf16": bf16}
    done = _already(out, texts, made)
    starts = range(done, len(texts), batch)
    bar = tqdm(starts, desc="generate", unit="batch", disable=not progress)
    device = next(target.model.parameters()).device
    narrow = torch.autocast(device.type, torch.bfloat16, enabled=bf16)
    with narrow, out.open("a", encoding="utf-8") as file:
        for start in bar:
            part = texts[start : start + batch]
            for text, ids in zip(
                part, _continue(target, tokenizer, part, max_new_tokens), strict=True
            ):
                record = {
                    "messages": [{"role": "user", "content": text}],
                    "completion": tokenizer.decode(ids, skip_special_tokens=True),
                    "completion_ids": ids,
                    **made,
                }
                file.write(json.dumps(record) + "\n")
            file.flush()
    return out


def _already(out: Path, texts: Sequence[str], made: dict[str, Any]) -> int:
    """How many of ``texts``, from the first, ``out`` has answers to, ``made`` as now; cuts half a line."""
    if not out.exists():
        return 0
    whole, newline, rest = out.read_bytes().rpartition(b"\n")
    lines = whole.splitlines() if newline else []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            asked = str(record["messages"][0]["content"])
        except (ValueError, LookupError, TypeError) as error:
            raise StoreError(
                f"{out}, line {number}, is no completion ({error}); give another folder, or remove that file."
            ) from error
        if number > len(texts) or asked != texts[number - 1]:
            raise StoreError(
                f"{out}, line {number}, answers {asked[:60]!r}, which is not the prompt to continue here; "
                "give another folder, or remove that file."
            )
        if {k: record.get(k) for k in made} != made:
            raise StoreError(
                f"{out}, line {number}, was made with other settings than {made}; "
                "give another folder, or remove that file."
            )
    if not _BEGINS.startswith(rest[: len(_BEGINS)]):
        raise StoreError(f"{out} is no file of completions; give another folder, or remove it.")
    if rest:  # the run was stopped while it wrote this line
        with out.open("r+b") as file:
            file.truncate(len(whole) + len(newline))
    return len(lines)


@torch.no_grad()
def _continue(
    target: HFTarget, tokenizer: Any, texts: Sequence[str], limit: int
) -> list[list[int]]:
    """Greedy continuations, each up to its end token; rows padded on the left for generation."""
    rendered = [render_prompt([{"role": "user", "content": t}], tokenizer, None) for t in texts]
    rows = [tokenizer(r, add_special_tokens=False)["input_ids"] for r in rendered]
    width, end = max(map(len, rows)), tokenizer.eos_token_id
    device = next(target.model.parameters()).device
    ids = torch.tensor([[end] * (width - len(r)) + r for r in rows], device=device)
    mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows], device=device)
    made = target.model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=limit,
        do_sample=False,
        eos_token_id=end,
        pad_token_id=end,
    )
    answers = [row[width:].tolist() for row in made]
    return [a[: a.index(end) + 1] if end in a else a for a in answers]
