"""The prompts of notebook 08, and completions that go on where a run was stopped."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from casebook.dflash import completions
from casebook.dflash.completions import prompts, spread
from casebook.dflash.errors import StoreError
from casebook.paths import data_dir


@given(st.lists(st.text(), unique=True), st.integers(0, 12))
def test_a_few_prompts_are_as_many_as_wanted_and_in_order(texts: list[str], count: int) -> None:
    chosen = spread(texts, count)
    assert len(chosen) == min(count, len(texts))
    assert chosen == [t for t in texts if t in chosen]


@pytest.mark.parametrize("count", [16, 48, 144])
def test_a_few_prompts_are_of_every_kind(count: int) -> None:
    train, _ = prompts()
    chosen = spread(train, count)
    templates = tomllib.loads((data_dir() / "dflash" / "prompts.toml").read_text("utf-8"))[
        "templates"
    ]
    counts = [sum(c.startswith(t.partition("{}")[0]) for c in chosen) for t in templates]
    assert sum(counts) == count
    assert max(counts) - min(counts) <= 1


class _Words:
    """A target that answers each prompt with its length, and keeps what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model, self.asked = torch.nn.Linear(1, 1), []
        monkeypatch.setattr(completions, "_continue", self._continue)

    def _continue(self, _target: Any, _tokenizer: Any, texts: Any, _limit: int) -> list[list[int]]:
        self.asked += texts
        return [[len(t)] for t in texts]

    @staticmethod
    def decode(ids: list[int], **_: Any) -> str:
        return str(ids[0])


def test_completions_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, out = _Words(monkeypatch), tmp_path / "train.jsonl"
    texts = ["one", "three", "eleven"]
    completions.generate_completions(words, words, texts[:2], out, progress=False)  # type: ignore[arg-type]
    with out.open("a") as file:
        file.write('{"messages": [{"ro')  # stopped while it wrote
    completions.generate_completions(words, words, texts, out, batch=1, progress=False)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert words.asked == texts
    assert [r["messages"][0]["content"] for r in rows] == texts
    assert [r["completion_ids"] for r in rows] == [[3], [5], [6]]


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (["another"], "answers 'another', which is not the prompt"),
        (["one", "three", "more"], "line 3, answers 'more'"),
        (None, "line 1, is no completion"),
        (b'{"messages": [{"content": 5}]}\n', "answers '5'"),
        (b"\xff\xfe\n", "line 1, is no completion"),
        (b"my own notes", "is no file of completions"),
    ],
)
def test_completions_of_other_prompts_are_refused(
    before: list[str] | bytes | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, out = _Words(monkeypatch), tmp_path / "train.jsonl"
    out.write_text("[]\n")
    if isinstance(before, bytes):
        out.write_bytes(before)
    elif before is not None:
        out.unlink()
        completions.generate_completions(words, words, before, out, progress=False)  # type: ignore[arg-type]
    held = out.read_bytes()
    with pytest.raises(StoreError, match=said):
        completions.generate_completions(words, words, ["one", "three"], out, progress=False)  # type: ignore[arg-type]
    assert out.read_bytes() == held


@pytest.mark.parametrize("changed", [{"max_new_tokens": 32}, {"bf16": True}])
def test_completions_of_other_settings_are_refused(
    changed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, out = _Words(monkeypatch), tmp_path / "train.jsonl"
    completions.generate_completions(words, words, ["one"], out, progress=False)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="other settings"):
        completions.generate_completions(  # type: ignore[arg-type]
            words, words, ["one", "two"], out, progress=False, **changed
        )


def test_prompts_are_kept_apart() -> None:
    train, held = prompts()
    assert len(train) == 576
    assert len(held) == 24
    assert not set(train) & set(held)
