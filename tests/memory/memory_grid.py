"""A grid of launches and devices, each sized by the release's own code and by the closed form."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.version import Version

from casebook.catalog.gpus import GIB
from casebook.launch import Launch
from casebook.memory import closed_form
from casebook.memory.dry_run import Device, DryRun, Sizer
from casebook.memory.facts import RankFacts, state_path
from casebook.memory.plan import SIZING_ERRORS, knobs_of
from casebook.memory.sweep import flag_name

QWEN = "Qwen/Qwen3.6-27B"
NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"


@dataclass(frozen=True)
class Base:
    """A launch whose numbers are varied. Sizes in GiB of one rank."""

    model: str
    flags: str
    weights_gib: float
    speculates: bool = False
    since: str = "0.5.8.post1"


def bases(release: str) -> list[Base]:
    """All families, strategies, ways to divide a model, and dtypes that the release serves."""
    strategy = flag_name("strategy", release)
    extra = f"{strategy} extra_buffer"
    found = [
        Base(QWEN, "", 51.2, since="0.5.9"),
        Base(QWEN, "--disable-radix-cache", 51.2, since="0.5.9"),
        Base(QWEN, f"--speculative-algorithm NEXTN {extra}", 51.2, True, "0.5.10"),
        Base(QWEN, f"--speculative-algorithm NEXTN {extra} --tp-size 2", 25.8, True, "0.5.10"),
        Base(QWEN, "--speculative-algorithm NEXTN --disable-radix-cache", 51.2, True, "0.5.9"),
        Base(QWEN, f"{extra} --tp-size 4 --dp-size 2 --enable-dp-attention", 13.2, since="0.5.9"),
        Base(QWEN, f"{strategy} extra_buffer_lazy", 51.2, since="0.5.13"),
        Base(NEXT, "--tp-size 2", 75.0),
        Base(NEXT, "--tp-size 4 --pp-size 2", 20.0),
        Base("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "", 59.0),
        Base("tiiuae/Falcon-H1-7B-Instruct", "--tp-size 2 --kv-cache-dtype fp8_e4m3", 7.2),
        Base("ibm-granite/granite-4.0-h-small", "", 60.0),
        Base("moonshotai/Kimi-Linear-48B-A3B-Instruct", "--trust-remote-code --tp-size 2", 46.0),
        Base("LiquidAI/LFM2-1.2B", "", 2.2),
        Base("Qwen/Qwen3-8B", "", 15.3),
    ]
    return [base for base in found if Version(release) >= Version(base.since)]


@dataclass(frozen=True)
class Point:
    """One launch on one device; ``shape`` are the flags that change facts, not only numbers."""

    base: Base
    numbers: Mapping[str, Any]
    shape: Mapping[str, Any]
    device: Device

    def launch(self, with_numbers: bool = True) -> Launch:
        """The launch, or with its shape only."""
        flags = {**self.shape, **(self.numbers if with_numbers else {})}
        words = " ".join(f"{name} {value}" for name, value in flags.items())
        return Launch.of(
            f"python -m sglang.launch_server --model-path {self.base.model} {self.base.flags} {words}"
        )


def points(base: Base, count: int, seed: int) -> list[Point]:
    """Random numbers, sensible and not: fractions, caps, ratios, limits, devices with neighbours."""
    draw = random.Random(f"{base.model} {base.flags} {seed}")
    found = []
    for _ in range(count):
        numbers: dict[str, Any] = {"--mem-fraction-static": round(draw.uniform(0.35, 0.99), 3)}
        if draw.random() < 0.4:
            numbers["--max-mamba-cache-size"] = draw.choice([1, 4, 17, 64, 100, 240, 512, 1000])
        if draw.random() < 0.5:
            numbers["--mamba-full-memory-ratio"] = draw.choice([0.1, 0.3, 0.5, 0.9, 1.5, 3.0])
        if draw.random() < 0.6:
            numbers["--max-running-requests"] = draw.choice([1, 2, 7, 16, 32, 48, 100, 256, 3000])
        if draw.random() < 0.2:
            numbers["--max-total-tokens"] = draw.choice([1000, 50_000, 300_000])
        shape: dict[str, Any] = {}
        if base.speculates and draw.random() < 0.6:
            drafts = draw.choice([2, 3, 4, 6])
            shape = {
                "--speculative-num-steps": drafts - 1,
                "--speculative-eagle-topk": 1,
                "--speculative-num-draft-tokens": drafts,
            }
        weights = round(base.weights_gib * draw.choice([1, 1, 1, 1.7]) * GIB)
        free = round(177 * GIB) - draw.randrange(0, 2**31)
        draft = round(0.8 * GIB) if base.speculates else 0
        found.append(Point(base, numbers, shape, Device(round(178.36 * GIB), free, weights, draft)))
    return found


@dataclass(frozen=True)
class Comparison:
    """One point by both engines; ``differences`` is empty where they agree on everything."""

    point: Point
    outcome: str
    differences: Mapping[str, tuple[Any, Any]]


def compare(
    sizer: Sizer, base: Base, count: int, seed: int = 1, jobs: int = 2
) -> Iterator[Comparison]:
    """Size the points of one base twice. Points that the arguments' own checks refuse are left out."""
    chosen = points(base, count, seed)
    known: dict[str, RankFacts] = {}
    for point, run in zip(
        chosen, sizer.run_all([(p.launch(), p.device) for p in chosen], jobs=jobs), strict=True
    ):
        if run.raw["stage"] == "arguments":
            continue
        key = str(point.shape)
        if key not in known:
            known[key] = sizer.run(point.launch(with_numbers=False)).facts
        got = closed_form.size(known[key], knobs_of(run)).at(0)
        want = _of_dry_run(run)
        differences = {
            name: (value, _category(got[name]) if name == "outcome" else got[name])
            for name, value in want.items()
            if value != (_category(got[name]) if name == "outcome" else got[name])
        }
        yield Comparison(point, str(want["outcome"]), differences)


def _category(outcome: str) -> str:
    return "out of memory" if outcome.startswith("out of memory") else outcome


def _of_dry_run(run: DryRun) -> dict[str, Any]:
    """What the release's own code made of a point, by the closed form's names."""
    if run.raw.get("refused"):
        return {"outcome": "out of memory"}
    if run.outcome != "resolved":
        for text, name in SIZING_ERRORS.items():
            if text in run.message:
                return {"outcome": name}
        return {"outcome": f"{run.raw['outcome'].get('type')}: {run.message[:200]}"}
    found = {
        "tokens": run.figure("max_total_num_tokens"),
        "requests": run.figure("max_running_requests"),
        "outcome": "starts",
    }
    state = run.raw["facts"].get("state") is not None
    if state:
        found["slots"] = run.figure("max_mamba_cache_size")
    if found["requests"] <= 0:  # up to 0.5.12 an assertion behind the pools says so
        del found["requests"]
        return {**found, "outcome": "no request fits"}
    pools = run.pool_bytes()
    windows = pools.get(state_path("windows"), pools.get(state_path("intermediate_conv_window"), 0))
    return {
        **found,
        "table_bytes": pools["req_to_token_pool.req_to_token"],
        "conv_bytes": pools.get(state_path("conv"), 0),
        "ssm_bytes": pools.get(state_path("temporal"), 0),
        "intermediate_ssm_bytes": pools.get(state_path("intermediate_ssm"), 0),
        "intermediate_conv_bytes": windows,
        "kv_bytes": _buffers(pools),
        "draft_kv_bytes": _buffers(run.pool_bytes("draft")),
    }


def _buffers(pools: Mapping[str, int]) -> int:
    return sum(
        size
        for path, size in pools.items()
        if path.startswith("token_to_kv_pool.") and "buffer" in path.rpartition(".")[2]
    )
