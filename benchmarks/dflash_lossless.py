"""Greedy speculative decoding on SmolLM2, float32, against the target's own text, token for token.

    python benchmarks/dflash_lossless.py [PROMPTS] [TOKENS]

Every prompt of ``data/dflash/prompts.toml`` (and prefixes of them, up to PROMPTS); the proposer is in
turn a random drafter and a text that is right for some tokens and wrong for others, so that blocks
are accepted whole, in part and not at all.
"""

from __future__ import annotations

import sys
from collections import Counter

import torch
import transformers
from tqdm.auto import tqdm

from casebook.dflash import Drafter, smollm2
from casebook.dflash.chat import render_prompt
from casebook.dflash.completions import prompts
from casebook.dflash.generate import DrafterProposer, FixedProposer, Proposer, generate


def main(count: int, tokens: int) -> None:
    """Print how many texts are equal, and how many drafted tokens were accepted per step."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    config = smollm2.drafter_config()
    target = smollm2.target(config)
    path = smollm2.gguf_file()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    texts = [t for group in prompts() for t in group]
    texts = (texts + [f"{t} Be brief." for t in texts])[:count]
    drafter, steps, equal = Drafter(config).initialize(0).eval(), Counter[int](), 0
    for number, text in enumerate(tqdm(texts, unit="prompt")):
        rendered = render_prompt([{"role": "user", "content": text}], tokenizer, None)
        prompt = torch.tensor(tokenizer(rendered, add_special_tokens=False)["input_ids"])
        own = target.model.generate(prompt[None], max_new_tokens=tokens, do_sample=False)[0]
        wanted = tuple(own[len(prompt) :].tolist())
        spoiled = own.clone()
        spoiled[len(prompt) + 1 + number % 7 :: 5] = 9
        proposer: Proposer = (
            DrafterProposer(drafter, target)
            if number % 4 == 0
            else FixedProposer(spoiled, config.block_size)
        )
        run = generate(target, proposer, prompt, tokens, {tokenizer.eos_token_id})
        equal += run.tokens == wanted
        steps.update(run.accepted)
    print(
        f"{equal} of {len(texts)} texts equal; steps by accepted tokens: {dict(sorted(steps.items()))}"
    )


if __name__ == "__main__":
    main(*(int(a) for a in (sys.argv[1:] + ["200", "12"][len(sys.argv) - 1 :])))
