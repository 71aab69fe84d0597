from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F  # noqa: N812

from casebook.dflash import Drafter, loss, split
from casebook.dflash.anchors import sample_anchors, valid_anchors
from casebook.dflash.attention import Backend, attend_packed
from casebook.dflash.errors import NoAnchorError
from casebook.dflash.masks import Blocks, additive, dense, own
from casebook.dflash.norm import RMSNorm
from casebook.dflash.rope import Rotary, rotate
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
def test_context_and_own_block_are_all_there_is_to_see(case: tuple[Blocks, int | None]) -> None:
    blocks, window = case
    whole = dense(blocks, window)[:, 0].unflatten(1, (-1, blocks.block_size))
    reach = int(blocks.anchors.max())
    parts = own(blocks, window, reach).expand(-1, -1, blocks.block_size, -1)
    inside = whole[..., blocks.context :].unflatten(-1, (-1, blocks.block_size))
    mine = torch.stack([inside[:, n, :, n] for n in range(blocks.anchors.shape[1])], 1)
    assert torch.equal(parts, torch.cat((whole[..., :reach], mine), -1))
    assert int(whole.sum()) == int(parts.sum())  # nothing beyond the last anchor or in other blocks


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


def many_blocks() -> tuple[Blocks, list[torch.Tensor]]:
    """Two rows of six blocks, one of them padding; queries of 4 heads, keys and values of 2."""
    torch.manual_seed(0)
    at = torch.stack([torch.randperm(17)[:6].sort().values for _ in range(2)])
    keep = torch.ones(2, 6, dtype=torch.bool)
    keep[1, -1] = False
    shapes = ((2, 4, 24, 8), (2, 2, 18 + 24, 8), (2, 2, 18 + 24, 8))
    return Blocks(at, keep, 4, 18), [torch.randn(s, requires_grad=True) for s in shapes]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("bytes_a_group", [64 << 20, 6000, 1])
def test_split_has_the_gradient_of_the_dense_form(
    bytes_a_group: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backward pass is written by hand; one group, some groups, a group per block."""
    monkeypatch.setattr("casebook.dflash.split.SCORE_BYTES", bytes_a_group)
    blocks, tensors = many_blocks()
    groups = len(split.plan(blocks, window, 4))
    assert groups == {64 << 20: 1, 6000: 3, 1: 6}[bytes_a_group]
    alive = blocks.keep.repeat_interleave(4, 1)[..., None]
    weights = torch.randn(2, 24, 32)
    found = []
    for backend in ("eager", "split"):
        out = attend_packed(blocks, backend)(*tensors, window)
        grads = torch.autograd.grad((out * weights * alive).sum(), tensors)
        found.append((out * alive, *grads))
    for dense_form, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, dense_form, atol=2e-6, rtol=1e-5)


def test_padding_blocks_get_no_gradient_and_give_none() -> None:
    blocks, tensors = many_blocks()
    out = attend_packed(blocks, "split")(*tensors, None)
    q, k, v = torch.autograd.grad(out.sum(), tensors)
    assert not out[1, 20:].any()
    for grad, first in ((q, 20), (k, 38), (v, 38)):
        assert grad[1, :, :first].any()
        assert not grad[1, :, first:].any()


def test_split_under_autocast_works_in_bfloat16() -> None:
    blocks, tensors = many_blocks()
    exact = attend_packed(blocks, "split")(*tensors, None)
    with torch.autocast("cpu", torch.bfloat16):
        narrow = attend_packed(blocks, "split")(*tensors, None)
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), exact, atol=0.02, rtol=0.02)
    narrow.sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in tensors)


def test_several_groups_keep_nothing_as_large_as_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """One group's scores are 6 blocks of 2 * 4 * 4 * 22 numbers."""
    blocks, tensors = many_blocks()

    def kept(bytes_a_group: int) -> set[int]:
        monkeypatch.setattr("casebook.dflash.split.SCORE_BYTES", bytes_a_group)
        sizes: set[int] = set()

        def note(x: torch.Tensor) -> torch.Tensor:
            sizes.add(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            attend_packed(blocks, "split")(*tensors, None)
        return sizes

    reach = int(blocks.anchors.max())
    assert 2 * 4 * 24 * (reach + 4) in kept(64 << 20)
    assert max(kept(6000)) == tensors[0].numel()  # the queries


@pytest.mark.parametrize("window", [None, 2])
def test_bfloat16_gradients_of_split_are_as_exact_as_of_the_dense_form(window: int | None) -> None:
    """Values with a mean: taking a rounded mean off the scores' gradient would double the error."""
    blocks, tensors = many_blocks()
    blocks = replace(blocks, keep=torch.ones_like(blocks.keep))
    with torch.no_grad():
        tensors[2].add_(3 * torch.randn(8))
    weights = torch.randn(2, 24, 32)

    def gradients(backend: Backend, dtype: torch.dtype) -> list[torch.Tensor]:
        narrow = [x.detach().to(dtype).requires_grad_() for x in tensors]
        out = attend_packed(blocks, backend)(*narrow, window)
        return [g.float() for g in torch.autograd.grad((out * weights.to(dtype)).sum(), narrow)]

    exact = gradients("eager", torch.float32)
    dense_form, ours = (gradients(b, torch.bfloat16) for b in ("eager", "split"))
    for true, theirs, mine in zip(exact, dense_form, ours, strict=True):
        assert (mine - true).norm() < 1.4 * (theirs - true).norm() + 1e-3 * true.norm()


def test_backward_under_autocast_gives_the_gradient_of_float32() -> None:
    blocks, tensors = many_blocks()
    out = attend_packed(blocks, "split")(*tensors, None)
    plain_ones = torch.autograd.grad(out.sum(), tensors, retain_graph=True)
    total = out.sum()
    with torch.autocast("cpu", torch.bfloat16):
        under = torch.autograd.grad(total, tensors)
    for a, b in zip(plain_ones, under, strict=True):
        assert torch.equal(a, b)


def test_a_second_derivative_is_refused_not_wrong() -> None:
    x = torch.randn(3, 8, requires_grad=True)
    (first,) = torch.autograd.grad(RMSNorm(8, 1e-6)(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()


def test_the_norm_has_the_gradient_of_its_formula() -> None:
    norm = RMSNorm(8, 1e-6)
    norm.weight.data.uniform_(0.5, 2)
    x = torch.randn(2, 3, 8, requires_grad=True)
    plain = norm.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    weights = torch.randn(2, 3, 8)
    torch.testing.assert_close(norm(x), plain, atol=1e-6, rtol=1e-6)
    for ours, formula in zip(
        torch.autograd.grad((norm(x) * weights).sum(), (x, norm.weight)),
        torch.autograd.grad((plain * weights).sum(), (x, norm.weight)),
        strict=True,
    ):
        torch.testing.assert_close(ours, formula, atol=1e-5, rtol=1e-5)


def test_normed_and_turned_at_once_is_one_after_the_other() -> None:
    norm, (cos, sin) = RMSNorm(8, 1e-6), Rotary(8, 1e4)(torch.tensor([[0, 3, 900]]), torch.float32)
    norm.weight.data.uniform_(0.5, 2)
    x, weights = torch.randn(2, 3, 4, 8, requires_grad=True), torch.randn(2, 4, 3, 8)
    found = [norm.turned(x, cos, sin), rotate(norm(x).transpose(1, 2), cos, sin)]
    grads = [torch.autograd.grad((out * weights).sum(), (x, norm.weight)) for out in found]
    torch.testing.assert_close(found[0], found[1], atol=1e-6, rtol=1e-6)
    for at_once, in_turn in zip(*grads, strict=True):
        torch.testing.assert_close(at_once, in_turn, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_rotation_is_the_complex_product_and_turns_gradients_back(dtype: torch.dtype) -> None:
    """Element i and i + d/2 are one complex number, turned by position times frequency."""
    x = torch.randn(2, 3, 5, 8).to(dtype).requires_grad_()
    positions = torch.tensor([[0, 1, 2, 900, 5], [7, 7, 8, 9, 10]])
    rotary = Rotary(8, 1e4)
    turned = rotate(x, *rotary(positions, dtype))
    numbers = torch.complex(*x.detach().float().chunk(2, -1))
    angle = positions[:, None, :, None] * rotary.inv_freq(x.device)
    wanted = torch.view_as_real(numbers * torch.polar(torch.ones_like(angle), angle))
    near = 1e-6 if dtype == torch.float32 else 0.05
    both = torch.cat(wanted.unbind(-1), -1)
    torch.testing.assert_close(turned.float(), both, atol=near, rtol=near)
    (back,) = torch.autograd.grad(turned, x, turned)  # the rotation's transpose is its inverse
    torch.testing.assert_close(back, x.detach(), atol=near, rtol=near)


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
