"""The checks that train, capture, serve or store: what only shows when the pipeline runs."""

from __future__ import annotations

import contextlib
import copy

import torch

from casebook.dflash import chat, checkpoint, feed, hidden, tiny
from casebook.dflash.batch import Sample
from casebook.dflash.bench import LENGTH, Bench
from casebook.dflash.checks_base import Finding, failed, on_bench, passed, verdict
from casebook.dflash.errors import StoreError
from casebook.dflash.generate import DrafterProposer, FixedProposer, Proposer, generate
from casebook.dflash.model import Drafter
from casebook.dflash.target import HFTarget
from casebook.dflash.trainer import Trainer

CLOSE = 1e-4


def _supervised(ids: torch.Tensor, key: str = "") -> Sample:
    return Sample(ids, torch.ones_like(ids, dtype=torch.uint8), key)


@on_bench(
    11,
    "tap k is the output of layer target_layer_ids[k]",
    "One layer off costs a few per cent, not all, so nobody notices; overfit-then-serve stays perfect.",
    "https://github.com/vllm-project/vllm/pull/40727",
)
def layer_identity(bench: Bench) -> Finding:
    """Each captured slice equals transformers' ``hidden_states[l + 1]`` and no other layer's."""
    ids = bench.prompt(1, 10)[None]
    target = bench.target
    with torch.no_grad():
        layers = target.model(ids, output_hidden_states=True).hidden_states
    slices = bench.pipeline.capture(target, ids).split(target.hidden_size, -1)
    found = []
    for part in slices:
        errors = [float((part - layer).abs().max()) for layer in layers]
        best = min(range(len(errors)), key=errors.__getitem__)
        found.append(best - 1 if errors[best] < CLOSE else None)
    wanted = list(target.layer_ids)
    return verdict(found == wanted, f"slices are the outputs of layers {found}, wanted {wanted}")


@on_bench(
    13,
    "hybrid capture: one document a row",
    "Packed rows leak through the recurrent state, whatever the mask says.",
    "this project's own run: hidden states differ by 0.54",
)
def hybrid_capture(bench: Bench) -> Finding:
    """On a hybrid target, a batch gives each document the hidden states it has alone."""
    samples = [_supervised(bench.prompt(s, n)) for s, n in ((4, 12), (5, 7))]
    batch = bench.pipeline.rows(samples, bench.hybrid)
    with torch.no_grad():
        layers = bench.hybrid.model(
            samples[0].input_ids[None], output_hidden_states=True
        ).hidden_states
    wanted = torch.cat([layers[i + 1] for i in bench.hybrid.layer_ids], -1)
    if batch.hidden.shape[0] != len(samples):
        alone = bench.hybrid.capture(samples[1].input_ids[None])
        leak = float((batch.hidden[0, 12:19] - alone[0]).abs().max())
        return failed(f"documents share a row; the second's hidden states change by {leak:.2f}")
    worst = float((batch.hidden[0, :12] - wanted[0]).abs().max())
    second = bench.hybrid.capture(samples[1].input_ids[None])
    worst = max(worst, float((batch.hidden[1, :7] - second[0]).abs().max()))
    return verdict(worst < CLOSE, f"padded rows differ from single ones by {worst:.1e}")


@on_bench(
    14,
    "hybrid rollback restores the state",
    "A cache that is only cut keeps the rejected tokens in its recurrent state.",
    "https://github.com/huggingface/transformers/pull/45513",
)
def hybrid_rollback(bench: Bench) -> Finding:
    """Verify a block, reject most of it, go back; the next logits equal a fresh pass."""
    target = bench.hybrid
    text = bench.prompt(6, 14)
    cache = target.new_cache()
    target.step(text[None, :8], cache)
    back = bench.pipeline.rollback(target, cache)
    target.step(text[None, 8:12], cache)
    back.keep(text[None, 8:10])
    after, _ = target.step(text[None, 10:11], cache)
    fresh, _ = target.step(text[None, :11], target.new_cache())
    difference = float((after[0, -1] - fresh[0, -1]).abs().max())
    return verdict(difference < 1e-2, f"logits differ by {difference:.1e} from a fresh pass")


@on_bench(
    15,
    "greedy output is the target's own",
    "Speculation must not change the answer; a wrong acceptance rule does, and looks fast.",
    "https://github.com/z-lab/dflash/issues/57",
)
def lossless(bench: Bench) -> Finding:
    """A random drafter and an oracle, against ``generate``; an end token inside a block; odd limits."""
    p = bench.pipeline
    for which in ("target", "hybrid"):
        target: HFTarget = getattr(bench, which)
        for seed, limit in ((0, 11), (1, 7)):
            prompt, wanted = bench.prompt(seed), bench.greedy(which, seed, 16)
            text = torch.cat((prompt, torch.tensor(wanted)))
            random = Drafter(bench.plain_config).initialize(5)
            proposers: list[Proposer] = [DrafterProposer(random, target), FixedProposer(text, 4)]
            # Right, wrong, right: acceptance must stop at the wrong one.
            spoiled = text.clone()
            spoiled[len(prompt) + 2 :: 4] = tiny.MASK_ID
            proposers.append(FixedProposer(spoiled, 4))
            for proposer in proposers:
                run = generate(
                    target, proposer, prompt, limit, accept=p.accept, rollback=p.rollback
                )
                if run.tokens != wanted[:limit]:
                    return failed(
                        f"{which}, prompt {seed}: {type(proposer).__name__} changes the text"
                    )
            end = wanted[5]
            short = wanted[: wanted.index(end) + 1]
            run = generate(
                target,
                FixedProposer(text, 4),
                prompt,
                24,
                {end},
                accept=p.accept,
                rollback=p.rollback,
            )
            if run.tokens != short:
                return failed(f"{which}, prompt {seed}: does not stop at the end token")
    return passed("4 prompts, 2 targets, 3 proposers, an end token within a block")


@on_bench(
    18,
    "one step, however it is cut up",
    "A mean per micro-batch lets short texts count for more.",
    "https://github.com/sgl-project/SpecForge/pull/731",
)
def normalisation(bench: Bench) -> Finding:
    """A batch of texts of unlike length, and the same as micro-batches, give one gradient."""
    sample = bench.sample
    cuts = [Sample(sample.input_ids[:n], sample.loss_mask[:n]) for n in (9, 14, 25, 42)]
    first = bench.drafter(seed=2)
    together, apart = (bench.trainer(4, copy.deepcopy(first)) for _ in range(2))
    whole = together.step([feed.capture_batch(cuts, bench.target)])
    pieces = apart.step([feed.capture_batch([c], bench.target) for c in cuts])
    if whole.scored_slots != pieces.scored_slots:
        return failed(
            f"{whole.scored_slots} slots are scored together, {pieces.scored_slots} apart"
        )
    worst = max(
        float((a.grad - b.grad).abs().max() / a.grad.abs().max().clamp(min=1e-12))
        for a, b in zip(together.drafter.parameters(), apart.drafter.parameters(), strict=True)
        if a.grad is not None and b.grad is not None
    )
    return verdict(worst < 1e-3, f"gradients differ by {worst:.1e} of the largest")


@on_bench(
    20,
    "only the drafter is trained, and all of it",
    "A frozen layer or a moving head trains without complaint.",
    "this project's own runs",
)
def trained_parts(bench: Bench) -> Finding:
    """The target's weights stay; every drafter tensor moves; the export holds none of the target's."""
    drafter = bench.pipeline.prepare(Drafter(bench.plain_config).initialize(1))
    before = {n: p.detach().clone() for n, p in drafter.named_parameters()}
    embedding = bench.target.model.get_input_embeddings().weight
    head = bench.pipeline.head(bench.target)
    frozen = [t.clone() for t in (embedding, head)]
    trainer = bench.trainer(5, drafter)
    trainer.step([bench.batch()])
    still = [n for n, p in trainer.drafter.named_parameters() if torch.equal(p, before[n])]
    if still:
        return failed(f"{len(still)} tensors do not move, such as {still[0]}")
    if not (torch.equal(embedding, frozen[0]) and torch.equal(head, frozen[1])):
        return failed("the target's embedding or head moved")
    names = checkpoint.tensor_infos(bench.exported())
    foreign = [n for n in names if "embed_tokens" in n or "lm_head" in n]
    return verdict(not foreign, f"exported {', '.join(foreign) or 'without embedding and head'}")


@on_bench(
    21,
    "the head is the target's head",
    "Where embedding and head are not tied, taking one for the other trains against noise.",
    "https://github.com/pegainfer-project/pegainfer/pull/544",
)
def right_head(bench: Bench) -> Finding:
    """Hidden states of the last layer through the head give the target's own logits."""
    ids = bench.prompt(2, 8)[None]
    with torch.no_grad():
        out = bench.target.model(ids, output_hidden_states=True)
        mine = out.hidden_states[-1] @ bench.pipeline.head(bench.target).T
    difference = float((mine - out.logits).abs().max())
    tied = bench.target.text_config.tie_word_embeddings
    return verdict(difference < CLOSE, f"tied: {tied}; logits differ by {difference:.1e}")


@on_bench(
    23,
    "the loss mask covers what the target said",
    "A template whose header is not found leaves zero supervised tokens; user text must not be learnt.",
    "https://github.com/z-lab/dflash/issues/133",
)
def supervised_text(bench: Bench) -> Finding:
    """A thinking, a plain and a multi-turn completion: supervised tokens, decoded, are the answer's."""
    from transformers import AutoTokenizer

    folder = bench.scratch / "tokenizer"
    tokenizer = bench.once(
        "tokenizer", lambda: AutoTokenizer.from_pretrained(tiny.tiny_tokenizer(folder))
    )
    ask, first = {"role": "user", "content": "what is one"}, {"role": "assistant", "content": "one"}
    cases = {
        "thinking": ([ask], "<think> because one </think> answer one", None),
        "not thinking": ([ask], "answer one", False),
        "multi-turn": ([ask, first, {"role": "user", "content": "plus two"}], "three", None),
    }
    for name, (messages, answer, thinking) in cases.items():
        made = bench.pipeline.sample(
            {"messages": messages, "completion": answer},
            tokenizer,
            chat.ChatSettings(thinking=thinking),
        )
        if isinstance(made, str):
            return failed(f"{name}: dropped, {made}")
        ids, mask = made.input_ids, made.loss_mask > 0
        learnt = tokenizer.decode(ids[mask])
        if learnt.split() != [*answer.split(), tokenizer.eos_token]:
            return failed(
                f"{name}: learns {learnt!r}, the target said {answer!r} and its end token"
            )
        rendered = chat.render_prompt(messages, tokenizer, thinking)
        if ids[~mask].tolist() != tokenizer(rendered, add_special_tokens=False)["input_ids"]:
            return failed(f"{name}: the prompt is not what the server renders")
    return passed("three kinds of conversation; end token included, no user text")


@on_bench(
    27,
    "narrow numbers stay close",
    "Hidden states kept too coarsely, or a norm in bfloat16, cost acceptance without an error.",
    "this project's own runs",
)
def narrow(bench: Bench) -> Finding:
    """Stored states within bfloat16's step; the cast drafter within 5 % of the float32 one."""
    states = bench.target.capture(bench.prompt(3, 12)[None])
    kept = bench.pipeline.stored(states).float()
    step = float(((kept - states).abs() / states.abs().clamp(min=1e-6)).max())
    if step > 2.0**-8:
        return failed(f"stored hidden states are off by {step:.1%}, bfloat16 allows {2.0**-8:.1%}")
    drafter = Drafter(bench.plain_config).initialize(3)
    cast = bench.pipeline.cast(drafter)
    embedded = bench.target.embedding(torch.full((1, 4), tiny.MASK_ID))
    with torch.no_grad():
        wide = drafter.draft(embedded, drafter.extend(None, states))
        thin = cast.draft(
            embedded.to(torch.bfloat16), cast.extend(None, states.to(torch.bfloat16))
        ).float()
    error = float((wide - thin).norm() / wide.norm())
    return verdict(error < 0.05, f"stored off by {step:.2%}, cast drafter off by {error:.2%}")


@on_bench(
    29,
    "overfit, export, serve: all accepted",
    "Training accuracy is 1.000 under nearly every fault; this is the test that is not.",
    "SpecForge scripts/gates; this project's own runs",
)
def overfit_and_serve(bench: Bench) -> Finding:
    """The bench's sample is learnt by heart; the exported files then draft it whole."""
    drafter, accuracy = bench.trained()
    try:
        run = bench.served()
    except (
        Exception
    ) as error:  # a server that cannot load the files is a failure, whatever it raises
        return failed(
            f"training accuracy {accuracy:.3f}; serving stops: {type(error).__name__}: {error}"
        )
    tau, size = bench.pipeline.tau(run), drafter.config.block_size
    wanted = bench.greedy("target", bench.seed, LENGTH)[: len(run.tokens)]
    honest = run.tokens == wanted
    detail = f"training accuracy {accuracy:.3f}, served acceptance length {tau:.2f} of {size}"
    return verdict(
        accuracy > 0.999 and tau == size and honest,
        detail + ("" if honest else ", other text"),
        training_accuracy_share=accuracy,
        served_tau_tokens=tau,
    )


@on_bench(
    30,
    "a resumed run is the same run",
    "Restored without Adam's moments the loss jumps.",
    "SpecForge commit bcb2ec2",
)
def resumed(bench: Bench) -> Finding:
    """Five steps at once, and three, a checkpoint, and two: the last losses are equal to the bit."""
    batch, path = bench.batch(), bench.scratch / "resume.pt"

    def fresh() -> Trainer:
        return bench.trainer(5, Drafter(bench.plain_config).initialize(1))

    straight, before, after = fresh(), fresh(), fresh()
    wanted = [straight.step([batch]).loss_nats for _ in range(5)][3:]
    for _ in range(3):
        before.step([batch])
    before.save(path)
    bench.pipeline.resume(after, path)
    got = [after.step([batch]).loss_nats for _ in range(2)]
    return verdict(got == wanted, f"losses {_list(got)}, uninterrupted {_list(wanted)}")


@on_bench(
    31,
    "the store of hidden states is whole",
    "A prefix cache hit skips rows; a copied store ends early; states of other layers look the same.",
    "https://github.com/vllm-project/vllm/issues/44485",
)
def store_refuses(bench: Bench) -> Finding:
    """A whole store opens; one cut short, with a flipped byte, or of other layers does not."""
    config, opened = bench.plain_config, bench.pipeline.opened

    def make() -> None:
        samples = [_supervised(bench.prompt(s, 9 + s), f"p{s}") for s in range(3)]
        hidden.capture(samples, bench.target, out, progress=False)

    out = bench.scratch / "store"
    if not out.exists():
        make()
    if opened(out, config) != 3:
        return failed("a whole store does not give its three samples")
    path = next(out.glob("*.safetensors"))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-40] ^= 1
    damages = {"cut short": whole[:-64], "a flipped bit": bytes(flipped)}
    missed = []
    for name, content in damages.items():
        path.write_bytes(content)
        with contextlib.suppress(StoreError):
            opened(out, config)
            missed.append(name)
        path.write_bytes(whole)
    other = config.replaced(target_layer_ids=tuple(i - 1 for i in config.target_layer_ids))
    with contextlib.suppress(StoreError):
        opened(out, other)
        missed.append("other layers")
    return verdict(
        not missed, f"accepts a store with {', '.join(missed)}" if missed else "3 damages refused"
    )


def _list(values: list[float]) -> str:
    return ", ".join(f"{v:.6f}" for v in values)
