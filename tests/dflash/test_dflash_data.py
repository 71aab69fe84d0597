from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from casebook.dflash import hidden
from casebook.dflash.batch import Sample
from casebook.dflash.budget import INCIDENT_TOKENS, Plan, budget, table
from casebook.dflash.chat import REASONS, ChatSettings, to_sample
from casebook.dflash.errors import StoreError
from casebook.dflash.hidden import HiddenStore, capture, estimate_bytes
from casebook.dflash.target import HFTarget
from casebook.dflash.tiny import tiny_config, tiny_tokenizer
from casebook.dflash.tokens import Report, read_report, read_samples, tokenize_completions

USER = {"role": "user", "content": "what is one"}


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def tokenizer(tokenizer_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(tokenizer_dir)


def lines(path: Path, records: list[Any]) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records) + "\n")
    return path


def completions(count: int) -> list[Any]:
    return [
        {"messages": [USER], "completion": f"answer {'one ' * (i % 5 + 1)}"} for i in range(count)
    ]


def test_generated_token_ids_win_over_text(tokenizer: Any) -> None:
    made = to_sample(
        {"messages": [USER], "completion": "no", "completion_ids": [9, 8, 1]},
        tokenizer,
        ChatSettings(),
    )
    assert isinstance(made, Sample)
    assert made.input_ids[made.loss_mask > 0].tolist() == [9, 8, 1]


@pytest.mark.parametrize(
    ("record", "settings", "reason"),
    [
        ({}, ChatSettings(), REASONS[0]),
        ({"messages": "hello"}, ChatSettings(), REASONS[0]),
        ({"messages": [USER], "completion": ""}, ChatSettings(), REASONS[2]),
        ({"messages": [{"role": "user"}], "completion": "one"}, ChatSettings(), REASONS[1]),
        ({"messages": [USER], "completion_ids": [1]}, ChatSettings(), REASONS[3]),
        (
            {"messages": [USER], "completion": "one two three"},
            ChatSettings(8, cut=False),
            REASONS[4],
        ),
        ({"messages": [USER], "completion": "one two"}, ChatSettings(6), REASONS[4]),
        (
            {"messages": [USER], "completion_ids": [9, 42, 1]},
            ChatSettings(mask_token_id=42),
            REASONS[5],
        ),
    ],
)
def test_samples_that_cannot_be_learnt_are_dropped_with_the_reason(
    record: Any, settings: ChatSettings, reason: str, tokenizer: Any
) -> None:
    assert to_sample(record, tokenizer, settings) == reason


def test_tokenising_reports_reads_back_and_resumes(tmp_path: Path, tokenizer_dir: Path) -> None:
    source = lines(
        tmp_path / "c.jsonl", [*completions(23), "no json", {"messages": [USER]}, *completions(5)]
    )
    whole = tokenize_completions(
        source, tokenizer_dir, tmp_path / "a", chunk_lines=7, progress=False
    )
    assert (whole.samples, whole.dropped) == (28, {"not JSON": 1, "empty completion": 1})
    assert 0 < whole.supervised_share < 1
    samples = read_samples(tmp_path / "a")
    assert sum(map(len, samples)) == whole.tokens
    assert sum(int(s.loss_mask.sum()) for s in samples) == whole.supervised_tokens
    assert read_report(tmp_path / "a") == whole
    # Stopped after two chunks: the manifest knows two, the rest is made again and is the same.
    manifest = json.loads((tmp_path / "a" / "tokens.json").read_text())
    manifest["chunks"] = manifest["chunks"][:2]
    (tmp_path / "a" / "tokens.json").write_text(json.dumps(manifest))
    again = tokenize_completions(
        source, tokenizer_dir, tmp_path / "a", chunk_lines=7, progress=False
    )
    assert again == whole
    for x, y in zip(samples, read_samples(tmp_path / "a"), strict=True):
        assert torch.equal(x.input_ids, y.input_ids)
        assert x.key == y.key
    with pytest.raises(StoreError, match="other settings"):
        tokenize_completions(
            source, tokenizer_dir, tmp_path / "a", ChatSettings(64), chunk_lines=7, progress=False
        )


def test_the_store_is_arrow_that_others_can_map(tmp_path: Path, tokenizer_dir: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    source = lines(tmp_path / "c.jsonl", completions(3))
    tokenize_completions(source, tokenizer_dir, tmp_path / "a", progress=False)
    with pa.memory_map(str(tmp_path / "a" / "tokens-000000.arrow")) as file:
        assert pa.ipc.open_stream(file).read_all().column_names == ["input_ids", "loss_mask", "key"]


@pytest.mark.slow
def test_two_processes_make_the_same_store(tmp_path: Path, tokenizer_dir: Path) -> None:
    source = lines(tmp_path / "c.jsonl", completions(20))
    one = tokenize_completions(source, tokenizer_dir, tmp_path / "a", chunk_lines=6, progress=False)
    two = tokenize_completions(
        source, tokenizer_dir, tmp_path / "b", processes=2, chunk_lines=6, progress=False
    )
    assert one == two
    for x, y in zip(read_samples(tmp_path / "a"), read_samples(tmp_path / "b"), strict=True):
        assert torch.equal(x.input_ids, y.input_ids)


def test_a_token_store_cut_short_is_refused(tmp_path: Path, tokenizer_dir: Path) -> None:
    source = lines(tmp_path / "c.jsonl", completions(4))
    tokenize_completions(source, tokenizer_dir, tmp_path / "a", progress=False)
    path = tmp_path / "a" / "tokens-000000.arrow"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(StoreError):
        read_samples(tmp_path / "a")
    with pytest.raises(StoreError, match="no store"):
        read_samples(tmp_path)


def some_samples(count: int = 5) -> list[Sample]:
    found = []
    for seed in range(count):
        ids = torch.randint(2, 96, (7 + seed,), generator=torch.Generator().manual_seed(seed))
        found.append(Sample(ids, torch.ones_like(ids, dtype=torch.uint8)))
    return found


def test_hidden_states_come_back_as_captured(tmp_path: Path, qwen3: HFTarget) -> None:
    samples, config = some_samples(), tiny_config(theta=1e4)
    capture(samples, qwen3, tmp_path, torch.float32, shard_samples=2, batch=2, progress=False)
    store = HiddenStore(tmp_path, config)
    assert len(store) == 5
    for i, sample in enumerate(samples):
        back, states = store.item(i)
        assert torch.equal(back.input_ids, sample.input_ids)
        torch.testing.assert_close(
            states, qwen3.capture(sample.input_ids[None])[0], atol=1e-5, rtol=1e-5
        )
    assert store.batch([0, 4]).hidden.shape == (2, 11, config.context_width)
    size = sum(p.stat().st_size for p in tmp_path.glob("*.safetensors"))
    assert (
        estimate_bytes(samples, qwen3, torch.float32)
        <= size
        < 1.5 * estimate_bytes(samples, qwen3, torch.float32)
    )


def test_capture_goes_on_where_it_was_stopped(
    tmp_path: Path, qwen3: HFTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, made = some_samples(), []
    whole = hidden._write_shard

    def stops(*args: Any) -> Any:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(1)
        return whole(*args)

    monkeypatch.setattr(hidden, "_write_shard", stops)
    with pytest.raises(KeyboardInterrupt):
        capture(samples, qwen3, tmp_path, shard_samples=1, progress=False)
    monkeypatch.setattr(hidden, "_write_shard", whole)
    capture(samples, qwen3, tmp_path, shard_samples=1, progress=False)
    assert len(HiddenStore(tmp_path, tiny_config(theta=1e4))) == 5
    with pytest.raises(StoreError, match="other samples"):
        capture(some_samples(4), qwen3, tmp_path, shard_samples=1, progress=False)


def test_a_store_that_does_not_fit_is_refused_before_it_starts(
    tmp_path: Path, qwen3: HFTarget
) -> None:
    with pytest.raises(StoreError, match="GB are free"):
        capture(some_samples(), qwen3, tmp_path / "s", room_bytes=100, progress=False)
    assert not list((tmp_path / "s").glob("*.safetensors"))


def test_rows_that_a_prefix_cache_skipped_are_noticed(tmp_path: Path, qwen3: HFTarget) -> None:
    from safetensors.torch import load_file, save_file

    capture(some_samples(2), qwen3, tmp_path, progress=False)
    path = next(tmp_path.glob("*.safetensors"))
    tensors = load_file(path)
    tensors["hidden.1"] = tensors["hidden.1"][3:].contiguous()
    save_file(tensors, path)
    with pytest.raises(StoreError, match="prefix cache"):
        HiddenStore(tmp_path, checksums=False)


class _Broken:
    """A source that answers with a NaN in one token of the second sample."""

    def __init__(self, target: HFTarget) -> None:
        self.layer_ids, self.hidden_size, self.target = target.layer_ids, target.hidden_size, target

    def capture(self, input_ids: torch.Tensor) -> torch.Tensor:
        states = self.target.capture(input_ids)
        states[1, 2, 0] = float("nan")
        return states


def test_states_that_are_no_numbers_are_never_written_nor_opened(
    tmp_path: Path, qwen3: HFTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match=r"Sample \S+ of shard 0: the hidden states hold NaN"):
        capture(some_samples(2), _Broken(qwen3), tmp_path / "refused", progress=False)
    monkeypatch.setattr(hidden, "refuse_not_finite", lambda *_: None)
    capture(some_samples(2), _Broken(qwen3), tmp_path / "elsewhere", progress=False)
    monkeypatch.undo()
    with pytest.raises(StoreError, match=r"safetensors, sample 1: the hidden states hold NaN"):
        HiddenStore(tmp_path / "elsewhere")


def test_values_too_large_for_the_stores_dtype_are_refused(tmp_path: Path, qwen3: HFTarget) -> None:
    class Loud(_Broken):
        def capture(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.target.capture(input_ids) + 1e5

    with pytest.raises(StoreError, match="infinity"):
        capture(some_samples(2), Loud(qwen3), tmp_path, torch.float16, progress=False)


def test_a_store_of_another_target_is_refused(tmp_path: Path, qwen3: HFTarget) -> None:
    capture(some_samples(1), qwen3, tmp_path, progress=False)
    with pytest.raises(StoreError, match="listens"):
        HiddenStore(tmp_path, tiny_config(taps=2))
    wide = tiny_config(hidden=64)
    with pytest.raises(StoreError, match="another target"):
        HiddenStore(tmp_path, wide)


def test_the_incidents_offline_store_is_about_90_tb() -> None:
    from casebook.catalog.models import load_models, model

    found = budget(model("Qwen/Qwen3.6-27B"), Plan())
    assert found.bytes_per_token == 51_200 + 9
    assert found.offline_bytes == pytest.approx(95.8e12, rel=1e-3)  # 87 TiB
    assert found.offline_bytes == found.bytes_per_token * INCIDENT_TOKENS
    twice = budget(model("Qwen/Qwen3.6-27B"), Plan(epochs=2))
    assert twice.online_gpu_hours == pytest.approx(2 * found.online_gpu_hours)
    assert twice.offline_gpu_hours < twice.online_gpu_hours
    rows = table(list(load_models().values()), Plan())
    assert (rows.select_dtypes("number") > 0).all().all()
    assert len(rows) > 30


def test_a_report_keeps_counts_whole_beside_a_share() -> None:
    table = Report(16, 995, 378, {"too long": 2}).table()
    assert table.loc["tokens"].tolist() == [995, "tokens"]
    assert table.loc["supervised share", "value"] == 0.3799
    assert table.loc["dropped: too long"].tolist() == [2, "samples"]
    assert "995.0" not in table.to_html()
