"""The checks of the training form: what a slot sees, where it stands, what it is trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from casebook.dflash import metrics
from casebook.dflash.attention import Backend
from casebook.dflash.batch import Batch
from casebook.dflash.bench import Bench
from casebook.dflash.checks_base import Finding, failed, on_bench, passed, verdict
from casebook.dflash.config import DrafterConfig
from casebook.dflash.errors import NoAnchorError
from casebook.dflash.loss import loss_terms
from casebook.dflash.masks import Blocks
from casebook.dflash.model import Drafter
from casebook.dflash.rope import inverse_frequencies

CONTEXT = 24
CLOSE = 1e-5


def _batch(config: DrafterConfig, seed: int = 0, rows: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, config.mask_token_id, (rows, CONTEXT), generator=generator)
    hidden = torch.randn(rows, CONTEXT, config.context_width, generator=generator)
    return Batch(ids, torch.ones_like(ids, dtype=torch.uint8), hidden)


def _blocks(bench: Bench, config: DrafterConfig, anchors: list[list[int]]) -> Blocks:
    at = torch.tensor(anchors)
    return Blocks(at, at >= 0, config.block_size, CONTEXT, bench.pipeline.form.see)


def _outputs(
    bench: Bench, drafter: Drafter, batch: Batch, blocks: Blocks, backend: Backend = "split"
) -> Tensor:
    return bench.pipeline.form.outputs(drafter, bench.target.embedding, batch, blocks, backend)


@on_bench(
    1,
    "no look at the anchor's hidden state or beyond",
    "At inference the anchor's hidden state is not there; a drafter that leans on it fails when served, "
    "though overfit-then-serve stays perfect.",
    "https://github.com/sgl-project/SpecForge/issues/455",
)
def no_future(bench: Bench) -> Finding:
    """The gradient of a block's output reaches exactly the context positions 0 .. anchor - 1."""
    config, anchor = bench.plain_config, 9
    batch = _batch(config)
    hidden = batch.hidden.clone().requires_grad_()
    made = Batch(batch.input_ids, batch.loss_mask, hidden)
    out = _outputs(bench, bench.drafter(), made, _blocks(bench, config, [[anchor]]))
    (gradient,) = torch.autograd.grad(out.square().sum(), hidden)
    seen = (gradient[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
    return verdict(seen == list(range(anchor)), f"anchor {anchor} sees context {_span(seen)}")


@on_bench(
    2,
    "no look at the labels",
    "A block that carries its own labels learns to copy, and has nothing to copy when served.",
    "this project's own runs",
)
def no_labels(bench: Bench) -> Finding:
    """All tokens but the anchor's are changed; the output stays."""
    config = bench.plain_config
    drafter, batch, blocks = bench.drafter(), _batch(config), _blocks(bench, config, [[9]])
    other = (batch.input_ids + 5) % config.mask_token_id
    other[0, 9] = batch.input_ids[0, 9]
    changed = Batch(other, batch.loss_mask, batch.hidden)
    difference = _difference(
        _outputs(bench, drafter, batch, blocks), _outputs(bench, drafter, changed, blocks)
    )
    return verdict(difference == 0, f"output changes by {difference:.1e}")


@on_bench(
    3,
    "no look at other blocks or rows",
    "Served blocks come one at a time; whatever a block takes from another is missing then.",
    "this project's own runs",
)
def no_neighbours(bench: Bench) -> Finding:
    """A second block and a second row are added; the first block's output stays."""
    config, drafter = bench.plain_config, bench.drafter()
    two = _batch(config, rows=2)
    alone = _outputs(bench, drafter, _first(two), _blocks(bench, config, [[9]]))
    among = _outputs(bench, drafter, two, _blocks(bench, config, [[9, 14], [3, 17]]))
    difference = _difference(alone[0], among[0, : config.block_size])
    return verdict(difference < CLOSE, f"output changes by {difference:.1e}")


@on_bench(
    4,
    "both ways inside a full block, backwards only and windowed in a sliding one",
    "Trained causally and served both ways (or the reverse) the acceptance length drops.",
    "https://github.com/sgl-project/SpecForge/pull/427",
)
def inside_block(bench: Bench) -> Finding:
    """Which slots a slot's gradient reaches, and which context on a sliding layer."""
    form, size, window = bench.pipeline.form, 4, 5
    for width in (None, window):
        config = (
            bench.plain_config
            if width is None
            else bench.sliding_config.replaced(
                num_hidden_layers=1, layer_types=("sliding_attention",)
            )
        )
        drafter, batch, blocks = (
            bench.drafter(config),
            _batch(config),
            _blocks(bench, config, [[12]]),
        )
        embedded = torch.randn(1, size, config.hidden_size).requires_grad_()
        hidden = batch.hidden.clone().requires_grad_()
        out = drafter(embedded, hidden, blocks, "split", form.positions(blocks))
        for slot in range(size):
            slots, context = torch.autograd.grad(
                out[0, slot].sum(), (embedded, hidden), retain_graph=True
            )
            seen = (slots[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
            far = (context[0].abs().sum(-1) > 0).nonzero().flatten().tolist()
            wanted = list(range(size)) if width is None else list(range(slot + 1))
            wanted_far = (
                list(range(12)) if width is None else list(range(12 + slot - window + 1, 12))
            )
            if (seen, far) != (wanted, wanted_far):
                kind = "full" if width is None else "sliding"
                return failed(
                    f"{kind} layer: slot {slot} sees slots {_span(seen)} and context {_span(far)}"
                )
    return passed("full: all slots; sliding: slots up to its own, window kept")


@on_bench(
    5,
    "labels stand at their own position",
    "Shifted by one, training accuracy is 1.000 and the served acceptance length 1.29.",
    "https://github.com/sgl-project/SpecForge/issues/455",
)
def alignment(bench: Bench) -> Finding:
    """An oracle that names token a + k in slot k has no loss; one shifted by a token has much."""
    config, form = bench.plain_config, bench.pipeline.form
    batch, blocks = _batch(config), _blocks(bench, config, [[2, 9, 15]])
    head = torch.eye(config.vocab_size)

    def loss(shift: int) -> float:
        at = (blocks.positions() + shift).clamp(max=CONTEXT - 1)
        out = 30.0 * head[batch.input_ids.gather(1, at)]
        mask = form.mask(batch.loss_mask, blocks)
        terms = loss_terms(
            out, head, form.labels(batch.input_ids, blocks), mask, form.weights(4, None)
        )
        return float(terms.loss)

    right, shifted = loss(0), loss(1)
    return verdict(
        right < 1e-3 < 1 < shifted, f"oracle's loss {right:.3f}, shifted oracle's {shifted:.1f}"
    )


@on_bench(
    6,
    "training form equals serving form",
    "Whatever differs between the packed pass and the served block is learnt for nothing.",
    "https://github.com/sgl-project/SpecForge/issues/533",
)
def forms_equal(bench: Bench) -> Finding:
    """The packed pass against one block over an incremental cache, full and sliding layers."""
    worst = 0.0
    for config in (bench.plain_config, bench.sliding_config):
        drafter, batch = bench.drafter(config), _batch(config)
        anchors = [1, 4, 9, 19]
        packed = _outputs(bench, drafter, batch, _blocks(bench, config, [anchors]))
        for n, anchor in enumerate(anchors):
            cache = drafter.extend(None, batch.hidden[:, : anchor // 2 + 1])
            if anchor // 2 + 1 < anchor:
                cache = drafter.extend(cache, batch.hidden[:, anchor // 2 + 1 : anchor])
            ids = torch.full((1, config.block_size), config.mask_token_id)
            ids[0, 0] = batch.input_ids[0, anchor]
            served = drafter.draft(bench.target.embedding(ids), cache)
            part = packed[:, n * config.block_size : (n + 1) * config.block_size]
            worst = max(worst, _difference(served, part))
    return verdict(worst < CLOSE, f"largest difference {worst:.1e}")


@on_bench(
    7,
    "slots stand at anchor, anchor + 1, ...",
    "A block one position off still learns its text, and is served at 2.11 instead of 4.",
    "https://github.com/sgl-project/SpecForge/issues/533",
)
def positions(bench: Bench) -> Finding:
    """The positions given to the block, and that the output depends on them."""
    config = bench.plain_config
    blocks = _blocks(bench, config, [[5, 11]])
    got = bench.pipeline.form.positions(blocks).tolist()[0]
    wanted = [a + j for a in (5, 11) for j in range(config.block_size)]
    drafter, batch = bench.drafter(), _batch(config)
    embedded = torch.randn(1, blocks.queries, config.hidden_size)
    here = drafter(embedded, batch.hidden, blocks)
    there = drafter(embedded, batch.hidden, blocks, positions=blocks.positions() + 1)
    if _difference(here, there) < CLOSE:
        return failed("the output does not depend on the positions")
    return verdict(got == wanted, f"anchors 5 and 11 stand at {got}")


@on_bench(
    10,
    "rotary frequencies stay float32",
    "Rounded to bfloat16 they turn 2.4 rad wrong at position 2048.",
    "https://github.com/NVIDIA-NeMo/Automodel/pull/2859",
)
def frequencies(bench: Bench) -> Finding:
    """After the cast a server makes, they equal freshly computed ones."""
    config = bench.plain_config
    cast = bench.pipeline.cast(bench.drafter())
    kept = cast.rotary.inv_freq(torch.device("cpu"))
    wanted = inverse_frequencies(config.head_dim, config.rope_theta)
    error = float((kept.float() / wanted - 1).abs().max())
    ok = kept.dtype == torch.float32 and error == 0
    return verdict(
        ok, f"{kept.dtype}, relative error {error:.1e} ({2048 * error:.2f} rad at position 2048)"
    )


@on_bench(
    17,
    "weights and masks of the loss",
    "Slot 0 must not count, slot 1 counts fully, later ones decay; unsupervised labels count nothing.",
    "https://github.com/sgl-project/SpecForge/pull/463",
)
def loss_by_hand(bench: Bench) -> Finding:
    """The loss against a plain loop over slots."""
    config, form = bench.plain_config, bench.pipeline.form
    batch = _batch(config, seed=2)
    mask = batch.loss_mask.clone()
    mask[0, 10:12] = 0
    blocks = _blocks(bench, config, [[3, 8, 22]])
    out = torch.randn(1, blocks.queries, config.hidden_size)
    head = torch.randn(config.vocab_size, config.hidden_size)
    for gamma in (None, 2.0):
        terms = loss_terms(
            out,
            head,
            form.labels(batch.input_ids, blocks),
            form.mask(mask, blocks),
            form.weights(4, gamma),
        )
        above, below = 0.0, 0.0
        for n, anchor in enumerate((3, 8, 22)):
            for k in range(1, config.block_size):
                at = anchor + k
                if at >= CONTEXT or not mask[0, at]:
                    continue
                weight = 1.0 if gamma is None else float(torch.exp(torch.tensor(-(k - 1) / gamma)))
                chance = torch.log_softmax(head @ out[0, n * config.block_size + k], 0)
                above -= weight * float(chance[batch.input_ids[0, at]])
                below += weight
        if abs(float(terms.loss) - above / below) > 1e-4:
            return failed(f"gamma {gamma}: {float(terms.loss):.4f}, by hand {above / below:.4f}")
    return passed("equal to a loop over slots, with and without decay")


@on_bench(
    19,
    "anchors are drawn fairly",
    "Older rules never drew the last block's worth of text, or lost one anchor a row.",
    "https://github.com/sgl-project/SpecForge/pull/731",
)
def fair_anchors(bench: Bench) -> Finding:
    """Every valid position is reached about equally often, whoever shares the batch; none raises."""
    draw = bench.pipeline.form.anchors
    mask = torch.zeros(1, 20, dtype=torch.uint8)
    mask[0, 4:9], mask[0, 15:] = 1, 1
    valid = [4, 5, 6, 7, 15, 16, 17, 18]
    counts = dict.fromkeys(range(20), 0)
    for seed in range(400):
        at, keep = draw(mask, 2, torch.Generator().manual_seed(seed))
        for a in at[keep].tolist():
            counts[a] += 1
    drawn = sorted(a for a, n in counts.items() if n)
    if drawn != valid:
        return failed(f"draws positions {drawn} of the valid {valid}")
    spread = max(abs(counts[a] - 100) for a in valid)  # 800 draws over 8 positions
    if spread > 45:  # 4.8 standard deviations
        return failed(f"a position was drawn {spread} times off the expected 100")
    every, keep = draw(mask, 99, torch.Generator().manual_seed(1))
    if every[keep].tolist() != valid:
        return failed(f"asked for all, it gives {every[keep].tolist()}")
    beside = torch.cat((mask, torch.ones_like(mask)))
    first = draw(mask, 3, torch.Generator().manual_seed(5))[0][0]
    second = draw(beside, 3, torch.Generator().manual_seed(5))[0][0]
    if not torch.equal(first, second):
        return failed("a row's anchors depend on its batch mates")
    try:
        draw(torch.zeros(1, 20, dtype=torch.uint8), 2, torch.Generator())
    except NoAnchorError:
        return passed("all 8 valid positions, the last pair too; none valid raises")
    return failed("a batch without a supervised pair is accepted")


@on_bench(
    28,
    "attention backends agree",
    "A bool mask added as a number masks nothing; padding rows average what they must not see.",
    "https://github.com/vllm-project/speculators/issues/686",
)
def backends_agree(bench: Bench) -> Finding:
    """eager, sdpa, FlexAttention and split give one output, 5 blocks of 4 slots, some padding."""
    backends: tuple[Backend, ...] = ("eager", "sdpa", "flex", "split")
    worst = 0.0
    for config in (bench.sliding_config,):  # its last layer is full
        drafter, batch = bench.drafter(config), _batch(config, rows=2)
        at = torch.tensor([[1, 5, 6, 11, 19], [0, 3, 9, 0, 0]])
        keep = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)
        blocks = Blocks(at, keep, config.block_size, CONTEXT, bench.pipeline.form.see)
        rows = keep.repeat_interleave(config.block_size, 1)
        with torch.no_grad():
            outs = {b: _outputs(bench, drafter, batch, blocks, b) for b in backends}
        for name, out in outs.items():
            if not bool(out.isfinite().all()):
                return failed(f"{name}: padding blocks are not finite")
            worst = max(worst, _difference(out[rows], outs["split"][rows]))
    return verdict(worst < CLOSE, f"largest difference {worst:.1e}")


@on_bench(
    16,
    "acceptance length is counted as A + 1",
    "Programs count the bonus, the first token or the average differently; figures are then compared.",
    "z-lab, SGLang, vLLM and speculators, which define it differently",
)
def counted(bench: Bench) -> Finding:
    """An oracle reaches the block size, its opposite 1; the four formulas on a worked example."""
    from casebook.dflash.generate import FixedProposer, generate

    p, prompt = bench.pipeline, bench.prompt(bench.seed)
    text = torch.cat((prompt, torch.tensor(bench.greedy("target", bench.seed, 60))))
    taus = []
    for wrong in (0, 1):
        proposer = FixedProposer(text, 4, wrong, bench.plain_config.vocab_size)
        run = generate(bench.target, proposer, prompt, 32, accept=p.accept)
        taus.append(p.tau(run))
    formulas = (
        metrics.zlab_tau([[3, 1], [0]]) == 2.0,
        metrics.sglang_accept_length(8, 3) == 8 / 3,
        metrics.vllm_mean_length(4, 3) == 1 + 4 / 3,
        metrics.speculators_eal([0.5, 0.5]) == 0.75,
    )
    return verdict(
        taus == [4.0, 1.0] and all(formulas), f"oracle {taus[0]:.2f}, its opposite {taus[1]:.2f}"
    )


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).detach().abs().max())


def _first(batch: Batch) -> Batch:
    return Batch(batch.input_ids[:1], batch.loss_mask[:1], batch.hidden[:1])


def _span(numbers: list[int]) -> str:
    """``0-8`` for a run of numbers, else the list."""
    if numbers and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return str(numbers)
