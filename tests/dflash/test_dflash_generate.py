from __future__ import annotations

from collections import Counter

import pytest
import torch

from casebook.dflash import Drafter
from casebook.dflash.errors import TargetError
from casebook.dflash.generate import DrafterProposer, FixedProposer, RepeatProposer, generate, plain
from casebook.dflash.metrics import accepted, by_position, training_lengths
from casebook.dflash.target import HFTarget, HiddenSource, Rollback
from casebook.dflash.tiny import tiny_config, tiny_qwen3


def prompt_of(seed: int, length: int = 6) -> torch.Tensor:
    return torch.randint(2, 96, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("which", ["qwen3", "hybrid"])
def test_greedy_speculation_is_the_targets_own_text(
    which: str, request: pytest.FixtureRequest
) -> None:
    target: HFTarget = request.getfixturevalue(which)
    drafter = Drafter(tiny_config(theta=1e4)).initialize(1)
    for seed in range(3):
        prompt = prompt_of(seed, 3 + seed)
        own = target.model.generate(
            prompt[None], max_new_tokens=13, do_sample=False, eos_token_id=None
        )
        wanted = tuple(own[0, len(prompt) :].tolist())
        assert plain(target, prompt, 13) == wanted
        text = torch.cat((prompt, torch.tensor(wanted)))
        spoiled = torch.where(torch.arange(len(text)) % 3 == 0, (text + 1) % 97, text)
        for proposer in (
            DrafterProposer(drafter, target),
            DrafterProposer(drafter, target, block_size=7),
            FixedProposer(text, 4),
            FixedProposer(spoiled, 5),
            RepeatProposer(3),
        ):
            assert generate(target, proposer, prompt, 13).tokens == wanted


@pytest.mark.slow
@pytest.mark.parametrize("which", ["qwen3", "hybrid"])
def test_greedy_speculation_on_200_prompts(which: str, request: pytest.FixtureRequest) -> None:
    target: HFTarget = request.getfixturevalue(which)
    drafter = Drafter(tiny_config(theta=1e4)).initialize(1)
    for seed in range(200):
        prompt = prompt_of(seed, 2 + seed % 9)
        wanted = plain(target, prompt, 6)
        text = torch.cat((prompt, torch.tensor(wanted)))
        spoiled = torch.where(torch.arange(len(text)) % 3 == seed % 3, (text + 1) % 97, text)
        proposer = DrafterProposer(drafter, target) if seed % 2 else FixedProposer(spoiled, 4)
        assert generate(target, proposer, prompt, 6).tokens == wanted


def test_sampled_speculation_has_the_targets_distribution(qwen3: HFTarget) -> None:
    """The second token's distribution given the prompt, against the target's exact one."""
    prompt, temperature = prompt_of(1), 9.0
    with torch.no_grad():
        first = torch.softmax(qwen3.model(prompt[None]).logits[0, -1] / temperature, -1)
        top = int(first.argmax())
    drawn: Counter[int] = Counter()
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        run = generate(
            qwen3, RepeatProposer(2), prompt, 1, temperature=temperature, generator=generator
        )
        drawn[run.tokens[0]] += 1
    share = float(first[top])
    assert abs(drawn[top] / 400 - share) < 4 * (share * (1 - share) / 400) ** 0.5


def test_speculation_accepts_a_draft_exactly_as_often_as_the_target_draws_it(
    qwen3: HFTarget,
) -> None:
    prompt = prompt_of(2)
    own = plain(qwen3, prompt, 3)
    text = torch.cat((prompt, torch.tensor(own)))
    hot, generator = 12.0, torch.Generator().manual_seed(3)
    wins = tries = 0
    for _ in range(500):
        run = generate(
            qwen3, FixedProposer(text, 2), prompt, 2, temperature=hot, generator=generator
        )
        if run.tokens[0] == own[0]:
            tries += 1
            wins += run.tokens[1] == own[1]
    with torch.no_grad():
        logits = qwen3.model(text[None, : len(prompt) + 1]).logits[0, -1]
    chance = float(torch.softmax(logits / hot, -1)[own[1]])
    assert tries > 30
    assert abs(wins / tries - chance) < 4 * (chance * (1 - chance) / tries) ** 0.5 + 0.01


def test_an_end_token_inside_a_block_ends_the_text(qwen3: HFTarget) -> None:
    prompt = prompt_of(3)
    own = plain(qwen3, prompt, 20)
    end = own[5]
    wanted = own[: own.index(end) + 1]
    run = generate(
        qwen3, FixedProposer(torch.cat((prompt, torch.tensor(own))), 4), prompt, 20, {end}
    )
    assert run.tokens == wanted


def test_naive_cutting_of_a_hybrid_cache_is_wrong_and_ours_is_not(hybrid: HFTarget) -> None:
    text = prompt_of(4, 12)
    fresh, _ = hybrid.step(text[None, :9], hybrid.new_cache())
    cache = hybrid.new_cache()
    hybrid.step(text[None, :6], cache)
    back = Rollback(hybrid, cache)
    hybrid.step(torch.cat((text[6:8], torch.tensor([3, 5])))[None], cache)
    back.keep(text[None, 6:8])
    after, _ = hybrid.step(text[None, 8:9], cache)
    torch.testing.assert_close(after[0, -1], fresh[0, -1], atol=1e-3, rtol=1e-4)


def test_captured_layers_are_those_of_transformers(qwen3: HFTarget, hybrid: HFTarget) -> None:
    for target in (qwen3, hybrid):
        assert isinstance(target, HiddenSource)
        ids = torch.stack((prompt_of(1, 8), prompt_of(2, 8)))
        with torch.no_grad():
            layers = target.model(ids, output_hidden_states=True).hidden_states
        wanted = torch.cat([layers[i + 1] for i in target.layer_ids], -1)
        torch.testing.assert_close(target.capture(ids), wanted)


def test_targets_that_do_not_suit_are_refused(qwen3: HFTarget) -> None:
    config = tiny_config(theta=1e4)
    for other, word in (
        (config.replaced(hidden_size=48), "hidden size"),
        (config.replaced(num_target_layers=9), "target layers"),
        (config.replaced(target_layer_ids=(0, 3, 5)), "listens"),
        (config.replaced(vocab_size=400, mask_token_id=300), "mask id"),
    ):
        with pytest.raises(TargetError, match=word):
            qwen3.suits(other)
    with pytest.raises(TargetError, match="taps must lie"):
        HFTarget(tiny_qwen3(config).model, [7])


def test_metrics_on_an_example() -> None:
    predicted = torch.tensor([[[-1, 5, 6, 7], [-1, 5, 0, 7], [-1, 5, -1, -1]]])
    labels = torch.tensor([[[1, 5, 6, 7], [1, 5, 6, 7], [1, 5, 6, 7]]])
    mask = torch.tensor([[[0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 0, 0]]]).float()
    assert training_lengths(predicted, labels, mask).tolist() == [4, 2]
    assert accepted(torch.tensor([1, 2, 3]), torch.tensor([1, 0, 3])) == 1
    table = by_position(predicted, labels, mask)
    assert table["scored_slots"].tolist() == [3, 2, 2]
    assert table["accuracy_share"].tolist() == pytest.approx([1, 0.5, 1])
    assert table["accepted_share"].tolist() == pytest.approx([1, 0.5, 0.5])
