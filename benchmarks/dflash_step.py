"""One training step of ours beside SpecForge 0.2.0's ``OnlineDFlashModel``: speed and peak memory.

One thread; time is the process's own CPU time (the median step), so that others on the machine do
not count.

    python benchmarks/dflash_step.py            both, on three configurations, each in a child of its own
    python benchmarks/dflash_step.py --one ours mid

Same weights, data, anchors, optimiser and attention backend each prefers on this device (ours:
``split``; SpecForge's: sdpa on a CPU). SpecForge is fetched by the tests' own oracle helper.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

SIZES = {
    # hidden, layers, heads of 64, vocabulary, block, context, anchors
    "tiny": (64, 2, 2, 1024, 4, 128, 32),
    "mid": (256, 3, 4, 32000, 16, 512, 64),
    "large vocabulary": (256, 2, 4, 248320, 16, 256, 64),
}
CHILDREN = 5
"""Of each, one after the other: a single pair gave a ratio anywhere from 0.8 to 1.3 on the tiny size."""
STEPS = {"tiny": 400, "mid": 6, "large vocabulary": 3}


def measure(which: str, size: str) -> dict[str, float]:
    """Time steps after one to warm up; peak resident memory above what stood before the first."""
    from casebook.dflash import Drafter, DrafterConfig
    from casebook.dflash.batch import Batch
    from casebook.dflash.trainer import Trainer, TrainSettings

    torch.set_num_threads(1)
    hidden, layers, heads, vocabulary, block, context, anchors = SIZES[size]
    config = DrafterConfig(
        hidden_size=hidden, intermediate_size=3 * hidden, num_attention_heads=heads,
        num_key_value_heads=heads // 2, head_dim=64, num_hidden_layers=layers, vocab_size=vocabulary,
        target_layer_ids=(1, 3, 5), num_target_layers=8, mask_token_id=vocabulary - 1, block_size=block,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    embedding = torch.nn.Embedding(vocabulary, hidden).requires_grad_(False)
    head = torch.nn.Linear(hidden, vocabulary, bias=False).requires_grad_(False)
    ids = torch.randint(vocabulary - 1, (1, context), generator=generator)
    states = torch.randn(1, context, config.context_width, generator=generator)
    mask = torch.ones(1, context, dtype=torch.uint8)
    drafter = Drafter(config).initialize(1)
    if which == "ours":
        settings = TrainSettings(1000, anchors=anchors, gamma=7.0)
        trainer = Trainer(drafter, embedding, head.weight, settings)
        batch = Batch(ids, mask, states)

        def step() -> None:
            trainer.step([batch])
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "dflash"))
        import dflash_oracles as oracles
        from transformers import Qwen3Config

        data = {
            k: v
            for k, v in config.to_json().items()
            if k not in ("architectures", "dtype", "rope_theta", "rope_scaling")
        }
        theirs = Qwen3Config(**data)
        theirs._attn_implementation = "sdpa"
        model = oracles.specforge_draft().DFlashDraftModel(theirs).float()
        model.load_state_dict(drafter.state_dict())
        wrapped = oracles.specforge_online().OnlineDFlashModel(
            model, head, embedding, config.mask_token_id, block, "sdpa", anchors, 7.0
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, weight_decay=0.0)

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            wrapped(ids, states, mask)[0].backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    before = resident()
    step()
    times = []
    for _ in range(STEPS[size]):
        started = time.process_time()
        step()
        times.append(time.process_time() - started)
    seconds = statistics.median(times)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "steps_per_cpu_second": 1 / seconds,
        "step_peak_mib": (peak - before) / 2**20,
        "peak_mib": peak / 2**20,
    }


def resident() -> int:
    """Bytes resident now (Linux)."""
    fields = Path("/proc/self/statm").read_text("ascii").split()
    return int(fields[1]) * resource.getpagesize()


def main() -> None:
    """Run both in children and print the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=2, metavar=("WHO", "SIZE"))
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one)))
        return
    for size in SIZES:
        runs: dict[str, list[dict[str, float]]] = {"ours": [], "specforge": []}
        for _ in range(CHILDREN):  # in turn, so that a slow minute of the machine meets both
            for who, found in runs.items():
                command = [sys.executable, __file__, "--one", who, size]
                out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                found.append(json.loads(out.strip().splitlines()[-1]))
        middle = {
            who: {key: statistics.median(one[key] for one in found) for key in found[0]}
            for who, found in runs.items()
        }
        for who, figures in middle.items():
            speeds = [round(one["steps_per_cpu_second"], 2) for one in runs[who]]
            rounded = {key: round(value, 2) for key, value in figures.items()}
            print(f"{size:>17} {who:>10} {rounded}, speeds {speeds}", flush=True)
        speed, step, peak = (middle["ours"][k] / middle["specforge"][k] for k in middle["ours"])
        print(
            f"{size:>17} ratio of medians: steps per CPU second {speed:.2f}, "
            f"memory of a step {step:.2f}, peak {peak:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
