from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from casebook.dflash import Drafter
from casebook.dflash.batch import Batch, Sample, refuse_bad_batch, refuse_not_finite
from casebook.dflash.bench import Bench, Pipeline
from casebook.dflash.checkpoint import load_drafter
from casebook.dflash.errors import NoAnchorError, StoreError, TrainingError
from casebook.dflash.feed import Order, capture_batch, online
from casebook.dflash.generate import DrafterProposer, generate, plain
from casebook.dflash.parallel import normalise
from casebook.dflash.target import HFTarget
from casebook.dflash.tiny import tiny_config
from casebook.dflash.tokens import MANIFEST, Chunk, _write_manifest, write_arrow
from casebook.dflash.trainer import Trainer, TrainSettings, learning_rate

CONFIG = tiny_config(theta=1e4)


def samples_of(target: HFTarget, count: int = 6) -> list[Sample]:
    found = []
    for seed in range(count):
        prompt = torch.randint(2, 96, (4,), generator=torch.Generator().manual_seed(seed))
        ids = torch.cat((prompt, torch.tensor(plain(target, prompt, 8 + 3 * seed))))
        mask = (torch.arange(len(ids)) >= 4).to(torch.uint8)
        found.append(Sample(ids, mask, f"s{seed}"))
    return found


def trainer_of(target: HFTarget, steps: int = 8, **changes: object) -> Trainer:
    settings = replace(TrainSettings(steps, lr=3e-3, gamma=4.0, anchors=16), **changes)  # type: ignore[arg-type]
    return Trainer(Drafter(CONFIG).initialize(1), target.embedding, target.head, settings)


def test_resuming_is_exact_to_the_bit(qwen3: HFTarget, tmp_path: Path) -> None:
    samples = samples_of(qwen3)
    order = Order(len(samples), 2, 2)

    def run(trainer: Trainer, steps: int) -> list[float]:
        return [
            trainer.step(b).loss_nats for b in online(samples, qwen3, order, trainer.done, steps)
        ]

    straight = trainer_of(qwen3)
    wanted = run(straight, 8)
    first = trainer_of(qwen3)
    got = run(first, 5)
    first.save(tmp_path / "c.pt")
    second = trainer_of(qwen3)
    second.load(tmp_path / "c.pt")
    got += run(second, 3)
    assert got == wanted
    for a, b in zip(straight.drafter.parameters(), second.drafter.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_of_another_run_is_refused(qwen3: HFTarget, tmp_path: Path) -> None:
    trainer_of(qwen3).save(tmp_path / "c.pt")
    with pytest.raises(TrainingError, match="other settings: lr"):
        trainer_of(qwen3, lr=1e-3).load(tmp_path / "c.pt")
    other = Trainer(
        Drafter(tiny_config(theta=1e6)), qwen3.embedding, qwen3.head, trainer_of(qwen3).settings
    )
    with pytest.raises(TrainingError, match="another drafter"):
        other.load(tmp_path / "c.pt")
    (tmp_path / "c.pt").write_bytes(b"no checkpoint")
    with pytest.raises(TrainingError):
        trainer_of(qwen3).load(tmp_path / "c.pt")


def test_accumulation_equals_one_batch(qwen3: HFTarget) -> None:
    samples = samples_of(qwen3, 4)
    whole, pieces = (trainer_of(qwen3, anchors=99) for _ in range(2))
    a = whole.step([capture_batch(samples, qwen3)])
    b = pieces.step([capture_batch([s], qwen3) for s in samples])
    assert a.loss_nats == pytest.approx(b.loss_nats, rel=1e-6)
    assert a.gradient_norm == pytest.approx(b.gradient_norm, rel=1e-5)
    assert a.scored_slots == b.scored_slots


def test_mixed_precision_trains_with_float32_masters(qwen3: HFTarget) -> None:
    trainer = trainer_of(qwen3, steps=60, bf16=True)
    batch = capture_batch(samples_of(qwen3, 2), qwen3)
    losses = [trainer.step([batch]).loss_nats for _ in range(60)]
    assert losses[-1] < losses[0] / 3
    assert all(p.dtype == torch.float32 for p in trainer.drafter.parameters())


def test_the_rate_warms_up_and_falls_to_nothing() -> None:
    settings = TrainSettings(100, lr=1.0)
    assert learning_rate(2, settings) == pytest.approx(0.5)
    assert learning_rate(4, settings) == 1.0
    assert learning_rate(52, settings) == pytest.approx(0.5)
    assert learning_rate(100, settings) == pytest.approx(0.0)
    assert learning_rate(100, replace(settings, min_lr_share=0.1)) == pytest.approx(0.1)


def test_a_number_that_is_not_finite_stops_and_keeps_the_batch(
    qwen3: HFTarget, tmp_path: Path
) -> None:
    batch = capture_batch(samples_of(qwen3, 1), qwen3)
    trainer = trainer_of(qwen3)
    trainer.rescue = tmp_path
    with torch.no_grad():
        trainer.drafter.fc.weight[0, 0] = float("nan")
    before = [p.clone() for p in trainer.drafter.parameters()]
    with pytest.raises(TrainingError, match="not finite at step 1; the batch is in"):
        trainer.step([batch])
    from safetensors.torch import load_file

    kept = load_file(next(tmp_path.glob("bad-step-1*.safetensors")))
    assert torch.equal(kept["hidden.0"], batch.hidden)
    assert all(
        torch.equal(a, b) or a.isnan().any()
        for a, b in zip(before, trainer.drafter.parameters(), strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_large_numbers_are_not_taken_for_infinite(dtype: torch.dtype) -> None:
    """Their sum overflows, they do not."""
    large = torch.full((1, 4, 8), torch.finfo(dtype).max, dtype=dtype)
    refuse_not_finite(large, "here")
    for bad in (float("nan"), float("inf"), -float("inf")):
        large[0, 1, 2] = bad
        large[0, 2, 3] = -bad  # the two would cancel, were they numbers
        with pytest.raises(StoreError, match="here: the hidden states hold NaN"):
            refuse_not_finite(large, "here")


@pytest.mark.parametrize("clip", [0.01, 1e6])
def test_normalising_and_clipping_in_one_pass_is_both_in_turn(clip: float) -> None:
    ours, theirs = (Drafter(CONFIG).initialize(1) for _ in range(2))
    generator = torch.Generator().manual_seed(0)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        a.grad = torch.randn(a.shape, generator=generator)
        b.grad = a.grad / 7.0
    norm = normalise(ours.parameters(), 7.0, clip)
    wanted = torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip)
    assert norm == pytest.approx(float(wanted), rel=1e-6)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=0, rtol=1e-5)


def test_a_drafter_without_gradients_has_none_to_clip() -> None:
    assert normalise(Drafter(CONFIG).parameters(), 2.0, 1.0) == 0.0


def test_bad_batches_are_refused_with_the_reason(qwen3: HFTarget) -> None:
    good = capture_batch(samples_of(qwen3, 1), qwen3)
    spoiled = good.hidden.clone()
    spoiled[0, 3, 0] = float("nan")
    masked = good.input_ids.clone()
    masked[0, 6] = CONFIG.mask_token_id
    for batch, word in (
        (replace(good, hidden=good.hidden[:, :-1]), "rows of hidden states"),
        (replace(good, hidden=good.hidden[..., :-1]), "wide"),
        (replace(good, hidden=spoiled), "NaN"),
        (replace(good, input_ids=good.input_ids + 90), "outside the vocabulary"),
        (replace(good, input_ids=good.input_ids - 90), r"token id -\d+ is outside"),
        (replace(good, input_ids=masked), "mask id"),
    ):
        with pytest.raises(StoreError, match=word):
            refuse_bad_batch(batch, CONFIG)
    unsupervised = replace(good, loss_mask=torch.zeros_like(good.loss_mask))
    with pytest.raises(NoAnchorError):
        trainer_of(qwen3).step([unsupervised])


def test_order_covers_every_sample_once_an_epoch_whoever_shares_it() -> None:
    alone = [
        i for step in range(3) for micro in Order(6, 1, 2, 1, 5).indices(step, 0) for i in micro
    ]
    assert sorted(alone) == list(range(6))
    shared = [
        [i for micro in Order(6, 1, 1, 2, 5).indices(step, rank) for i in micro]
        for step in range(3)
        for rank in range(2)
    ]
    assert [i for one in shared for i in one] == alone


@pytest.mark.parametrize("which", ["qwen3", "hybrid"])
def test_overfit_then_serve_accepts_whole_blocks(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    from casebook.dflash.checkpoint import save_drafter

    target: HFTarget = request.getfixturevalue(which)
    prompt = torch.randint(2, 96, (6,), generator=torch.Generator().manual_seed(3))
    own = plain(target, prompt, 30)
    ids = torch.cat((prompt, torch.tensor(own)))
    sample = Sample(ids, (torch.arange(36) >= 6).to(torch.uint8))
    trainer = trainer_of(target, steps=120, lr=5e-3, anchors=64)
    batch = capture_batch([sample], target)
    for _ in range(120):
        trainer.step([batch])
    served = load_drafter(save_drafter(trainer.drafter, tmp_path))
    run = generate(target, DrafterProposer(served, target), prompt, 26)
    assert run.tokens == own[:26]
    assert run.tau == CONFIG.block_size


def write_run(folder: Path, target: HFTarget, **changes: object) -> Path:
    """A run's directory: target, drafter configuration, token store, and its description."""
    if not (folder / "target").exists():
        target.model.save_pretrained(folder / "target")
        CONFIG.write(folder / "draft")
        samples = samples_of(target, 8)
        (folder / "tokens").mkdir()
        write_arrow(samples, folder / "tokens" / "t.arrow")
        count, total = len(samples), sum(map(len, samples))
        _write_manifest(folder / "tokens", {}, [Chunk("t.arrow", 0, 1, count, total, 1, {})])
        assert (folder / "tokens" / MANIFEST).exists()
    settings = {"steps": 6, "lr": 3e-3, "gamma": 4.0, "anchors": 8}
    spec = {
        "target": "target",
        "drafter": "draft",
        "tokens": "tokens",
        "settings": settings,
        **changes,
    }
    path = folder / f"{spec['out']}.json"
    path.write_text(json.dumps(spec))
    return path


def launch(path: Path, processes: int) -> None:
    command = [sys.executable, "-m"]
    if processes > 1:
        command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    done = subprocess.run(
        [*command, "casebook.dflash.online", str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_processes_share_a_run(qwen3: HFTarget, tmp_path: Path) -> None:
    """1 x 4 accumulation = 2 x 2 with FSDP2 = one target rank feeding one drafter rank; and resumed."""
    launch(write_run(tmp_path, qwen3, out="one", accumulate=4), 1)
    launch(write_run(tmp_path, qwen3, out="two", accumulate=2), 2)
    launch(write_run(tmp_path, qwen3, out="roles", accumulate=4, target_ranks=1), 2)
    part = write_run(tmp_path, qwen3, out="part", accumulate=2, stop_after=3)
    launch(part, 2)
    launch(write_run(tmp_path, qwen3, out="part", accumulate=4), 1)
    wanted = pd.read_csv(tmp_path / "one" / "metrics.csv")
    assert len(wanted) == 6
    for other in ("two", "roles", "part"):
        got = pd.read_csv(tmp_path / other / "metrics.csv")
        for column in ("loss_nats", "gradient_norm"):
            assert (got[column] - wanted[column]).abs().max() < 1e-6 * max(
                1, wanted[column].max()
            ), other
        assert got["tokens"].tolist()[0] > 0
        a, b = (load_drafter(tmp_path / n / "drafter") for n in ("one", other))
        for x, y in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(x, y, atol=1e-2, rtol=1e-2)  # bfloat16 files


def test_bench_is_made_of_the_healthy_parts(tmp_path: Path) -> None:
    bench = Bench(Pipeline(), tmp_path)
    assert isinstance(bench.batch(), Batch)
    assert bench.trainer().form == Pipeline().form
