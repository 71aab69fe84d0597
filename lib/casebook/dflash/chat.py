"""One completion to one sample: what the server's template renders, then what the target said.

The prompt is rendered by the tokenizer's own chat template, with its generation prompt, exactly as
the server does; the completion's tokens follow. Prompt and completion are tokenised apart, as in
serving, so no token straddles the border and the loss mask is a span of *tokens*, not a guess from
character positions. Only the last turn is trained: earlier answers were given in other contexts,
and templates strip their thinking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from casebook.dflash.batch import Sample

Drop = str
"""Why a completion makes no sample; one of :data:`REASONS`."""
REASONS = (
    "not a conversation",
    "template refuses it",
    "empty completion",
    "fewer than two supervised tokens",
    "longer than the limit",
    "contains the mask token",
)


@dataclass(frozen=True)
class ChatSettings:
    """How completions become samples."""

    max_length: int = 4096
    """Tokens of prompt and completion; longer samples are cut at the end, or dropped."""
    cut: bool = True
    thinking: bool | None = None
    """Passed to the template as ``enable_thinking``; must be as in serving. None passes nothing."""
    mask_token_id: int | None = None


def to_sample(
    record: Mapping[str, Any], tokenizer: Any, settings: ChatSettings, key: str = ""
) -> Sample | Drop:
    """A sample of one record, or the reason why not.

    ``record`` has ``messages`` (ending with the assistant's answer, or with a user turn plus
    ``completion``); ``completion_ids``, the generated token ids, win over any text.
    """
    messages, completion = _parts(record)
    if not messages:
        return REASONS[0]
    try:
        prompt_text = render_prompt(messages, tokenizer, settings.thinking)
    except Exception:  # templates raise whatever they like
        return REASONS[1]
    prompt = tokenizer(prompt_text, add_special_tokens=False)["input_ids"]
    answer = _answer_ids(record, completion, tokenizer, prompt_text)
    if not answer:
        return REASONS[2]
    ids = [*prompt, *answer]
    if len(ids) > settings.max_length and not settings.cut:
        return REASONS[4]
    ids = ids[: settings.max_length]
    if len(ids) - len(prompt) < 2:
        return REASONS[3] if len(prompt) + 2 <= settings.max_length else REASONS[4]
    if settings.mask_token_id is not None and settings.mask_token_id in ids:
        return REASONS[5]
    mask = torch.zeros(len(ids), dtype=torch.uint8)
    mask[len(prompt) :] = 1
    return Sample(torch.tensor(ids, dtype=torch.int64), mask, key)


def render_prompt(
    messages: Sequence[Mapping[str, Any]], tokenizer: Any, thinking: bool | None
) -> str:
    """What the server's template makes of the turns before the answer, generation prompt included."""
    extra = {} if thinking is None else {"enable_thinking": thinking}
    return tokenizer.apply_chat_template(
        list(messages), tokenize=False, add_generation_prompt=True, **extra
    )


def _parts(record: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], str]:
    messages = record.get("messages")
    if not isinstance(messages, list) or not all(
        isinstance(m, Mapping) and "role" in m for m in messages
    ):
        return [], ""
    completion = record.get("completion")
    if messages and messages[-1]["role"] == "assistant" and completion is None:
        return messages[:-1], str(messages[-1].get("content") or "")
    return messages, str(completion or "")


def _answer_ids(record: Mapping[str, Any], text: str, tokenizer: Any, prompt: str) -> list[int]:
    given = record.get("completion_ids")
    if isinstance(given, list) and given:
        return [int(t) for t in given]
    if not text:
        return []
    # A prompt that opens the thought already (Qwen3.5: "<think>\n") must not see it opened twice.
    for opening in ("<think>\n", "<think>"):
        if prompt.endswith(opening) and text.startswith(opening):
            text = text[len(opening) :]
            break
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    return ids if end is None or (ids and ids[-1] == end) else [*ids, end]
