from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from casebook.dflash import Drafter, loss
from casebook.dflash.anchors import sample_anchors, valid_anchors
from casebook.dflash.errors import NoAnchorError
from casebook.dflash.masks import Blocks, additive, block_mask, context_mask, dense
from casebook.dflash.tiny import tiny_config


@st.composite
def some_blocks(draw: st.DrawFn) -> tuple[Blocks, int | None]:
    context = draw(st.integers(2, 12))
    rows, count, size = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(2, 5))
    anchors = draw(
        st.lists(st.integers(0, context - 1), min_size=rows * count, max_size=rows * count)
    )
    keep = draw(st.lists(st.booleans(), min_size=rows * count, max_size=rows * count))
    shape = (rows, count)
    blocks = Blocks(
        torch.tensor(anchors).view(shape), torch.tensor(keep).view(shape), size, context
    )
    return blocks, draw(st.one_of(st.none(), st.integers(1, 8)))


@settings(max_examples=80, deadline=None)
@given(some_blocks())
def test_the_mask_is_the_rule_slot_by_slot(case: tuple[Blocks, int | None]) -> None:
    blocks, window = case
    mask = dense(blocks, window)
    for row in range(blocks.anchors.shape[0]):
        for q in range(blocks.queries):
            block, slot = divmod(q, blocks.block_size)
            anchor = int(blocks.anchors[row, block])
            for k in range(blocks.context + blocks.queries):
                if k < blocks.context:
                    sees = k < anchor and (window is None or k >= anchor + slot - window + 1)
                else:
                    other, own = divmod(k - blocks.context, blocks.block_size)
                    sees = other == block and (window is None or 0 <= slot - own < window)
                assert bool(mask[row, 0, q, k]) == (sees and bool(blocks.keep[row, block]))


@settings(max_examples=60, deadline=None)
@given(some_blocks())
def test_the_two_parts_make_the_whole(case: tuple[Blocks, int | None]) -> None:
    blocks, window = case
    whole = dense(blocks, window)
    assert torch.equal(whole[..., : blocks.context], context_mask(blocks, window))
    inside = whole[:, 0, :, blocks.context :].unflatten(1, (-1, blocks.block_size))
    inside = inside.unflatten(-1, (-1, blocks.block_size))
    own = torch.stack([inside[:, n, :, n] for n in range(blocks.anchors.shape[1])], 1)
    assert torch.equal(own, block_mask(blocks, window))
    assert int(inside.sum()) == int(own.sum())  # nothing outside the own block


@settings(max_examples=15, deadline=None)
@given(some_blocks())
def test_four_backends_give_one_output(case: tuple[Blocks, int | None]) -> None:
    blocks, window = case
    config = tiny_config(layers=2, window=window, block_size=blocks.block_size)
    drafter = Drafter(config.replaced(initializer_range=0.15)).initialize(1)
    hidden = torch.randn(len(blocks.anchors), blocks.context, config.context_width)
    embedded = torch.randn(len(blocks.anchors), blocks.queries, config.hidden_size)
    rows = blocks.keep.repeat_interleave(blocks.block_size, 1)
    with torch.no_grad():
        outs = [drafter(embedded, hidden, blocks, b) for b in ("split", "eager", "sdpa", "flex")]
    for out in outs:
        assert out.isfinite().all()
        torch.testing.assert_close(out[rows], outs[0][rows], atol=2e-5, rtol=1e-4)


def test_split_in_many_groups_is_split_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config()
    drafter = Drafter(config.replaced(initializer_range=0.15)).initialize(1)
    at = torch.tensor([[1, 4, 8, 9, 15]])
    blocks = Blocks(at, at >= 0, 4, 18)
    hidden, embedded = (
        torch.randn(1, 18, config.context_width),
        torch.randn(1, 20, config.hidden_size),
    )
    found = []
    for size in (64 << 20, 1):
        monkeypatch.setattr("casebook.dflash.attention.SCORE_BYTES", size)
        drafter.zero_grad()
        out = drafter(embedded, hidden, blocks)
        out.square().sum().backward()
        found.append((out.detach(), drafter.fc.weight.grad.clone()))
    torch.testing.assert_close(found[0][0], found[1][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1], atol=1e-3, rtol=1e-3)


def test_an_additive_mask_never_makes_nan() -> None:
    mask = torch.zeros(1, 1, 2, 3, dtype=torch.bool)
    assert additive(mask, torch.float32).softmax(-1).isfinite().all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=2, max_size=20), st.integers(1, 6), st.integers(0, 2**31))
def test_anchors_are_supervised_pairs(mask: list[bool], count: int, seed: int) -> None:
    loss_mask = torch.tensor([mask]).to(torch.uint8)
    valid = valid_anchors(loss_mask)[0].nonzero().flatten().tolist()
    generator = torch.Generator().manual_seed(seed)
    if not valid:
        with pytest.raises(NoAnchorError):
            sample_anchors(loss_mask, count, generator)
        return
    at, keep = sample_anchors(loss_mask, count, generator)
    drawn = at[keep].tolist()
    assert drawn == sorted(set(drawn))
    assert set(drawn) <= set(valid)
    assert len(drawn) == min(count, len(valid))


def test_anchors_are_the_same_for_the_same_seed_and_uniform() -> None:
    mask = torch.ones(1, 6, dtype=torch.uint8)
    first, again = (sample_anchors(mask, 3, torch.Generator().manual_seed(4))[0] for _ in range(2))
    assert torch.equal(first, again)
    counts = Counter(
        int(sample_anchors(mask, 1, torch.Generator().manual_seed(s))[0]) for s in range(500)
    )
    assert min(counts[i] for i in range(5)) > 65  # 100 expected, 9 is a standard deviation


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([None, 2.0, 7.0]), st.sampled_from([1, 64 << 20]))
def test_chunked_loss_equals_plain_cross_entropy(
    seed: int, gamma: float | None, piece: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    rows, head = torch.randn(2, 12, 8, generator=generator), torch.randn(31, 8, generator=generator)
    wanted = torch.randint(31, (2, 3, 4), generator=generator)
    mask = (torch.rand(2, 3, 4, generator=generator) > 0.3).float()
    mask[..., 0], mask[0, 0, 1] = 0, 1
    weights = loss.decay(4, gamma)
    ours, theirs = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    before, loss.LOGIT_BYTES = loss.LOGIT_BYTES, piece
    try:
        terms = loss.loss_terms(ours, head, wanted, mask, weights)
        (terms.loss * 3).backward()
    finally:
        loss.LOGIT_BYTES = before
    each = F.cross_entropy(
        (theirs @ head.T).flatten(0, 1), wanted.flatten(), reduction="none"
    ).view_as(mask)
    plain = (each * mask * weights).sum() / (mask * weights).sum()
    (plain * 3).backward()
    torch.testing.assert_close(terms.loss, plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-4)
    chosen = (rows @ head.T).argmax(-1).view_as(wanted)
    assert torch.equal(terms.predicted[mask > 0], chosen[mask > 0])
    assert (terms.predicted[mask == 0] == -1).all()


def test_decay_begins_behind_slot_one() -> None:
    assert loss.decay(4, 2.0).tolist() == pytest.approx([1, 1, 0.60653, 0.36788], abs=1e-5)
    assert loss.decay(3, None).tolist() == [1, 1, 1]


def test_labels_beyond_the_text_and_unsupervised_ones_do_not_count() -> None:
    ids = torch.arange(10, 18)[None]
    mask = torch.tensor([[0, 1, 1, 1, 0, 1, 1, 1]])
    blocks = Blocks(torch.tensor([[2, 6]]), torch.ones(1, 2, dtype=torch.bool), 4, 8)
    assert loss.labels(ids, blocks)[0].tolist() == [[12, 13, 14, 15], [16, 17, 17, 17]]
    assert loss.label_mask(mask, blocks)[0].tolist() == [[0, 1, 0, 1], [0, 1, 0, 0]]
