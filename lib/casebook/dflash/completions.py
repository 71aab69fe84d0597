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
    golden = range(int(number * 0.618), number + 1)  # the step that leaves the evenest gaps
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
    bfloat16 arithmetic: twice as fast, and now and then another word than float32 would choose.
    Raises StoreError where ``out`` holds answers to other prompts.
    """
    done = _already(out, texts)
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
                }
                file.write(json.dumps(record) + "\n")
            file.flush()
    return out


def _already(out: Path, texts: Sequence[str]) -> int:
    """How many of ``texts``, from the first, ``out`` has answers to."""
    if not out.exists():
        return 0
    whole = out.read_bytes().rpartition(b"\n")
    if whole[2]:  # the run was stopped while it wrote this line
        out.write_bytes(whole[0] + whole[1])
    number = 0
    with out.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                asked = json.loads(line)["messages"][0]["content"]
            except (ValueError, LookupError, TypeError) as error:
                raise StoreError(
                    f"{out}, line {number}, is no completion ({error}); remove that line and what follows."
                ) from error
            if number > len(texts) or asked != texts[number - 1]:
                raise StoreError(
                    f"{out}, line {number}, answers {asked[:60]!r}, which is not the prompt to continue here; "
                    "give another folder, or remove that file."
                )
    return number


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
