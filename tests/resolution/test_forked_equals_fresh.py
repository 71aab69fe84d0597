"""A launch in a fork of a warm child gives what it gives in a process of its own.

A process of its own takes some seconds to import SGLang. So the suite compares in two steps: all 50
launches in a warm child against a *bare* one, which has imported SGLang and done nothing else (no
warm-up, no parser made beforehand, no spare fork) and so differs from a new process by the fork alone;
and the first few against processes of their own, for the fork. All 50 are compared with those by
``python tests/resolution/test_forked_equals_fresh.py``.
"""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from casebook import capsule as capsules
from casebook.catalog.gpus import gpu
from casebook.catalog.hub import hub_for_catalog
from casebook.sandbox import Worker

pytestmark = [pytest.mark.capsule, pytest.mark.slow]
COUNT = 50
IN_SUITE = 3
MODELS = ("Qwen/Qwen3.6-27B", "Qwen/Qwen3-Next-80B-A3B-Instruct", "Qwen/Qwen3-8B")
OPTIONS: dict[str, tuple[str | None, ...]] = {
    "--tp-size": (None, "2", "4"),
    "--page-size": (None, "16", "64"),
    "--mem-fraction-static": (None, "0.7"),
    "--speculative-algorithm": (None, "NEXTN"),
    "--mamba-scheduler-strategy": (None, "extra_buffer", "no_buffer"),
    "--attention-backend": (None, "triton", "flashinfer"),
    "--max-running-requests": (None, "32"),
    "--no-such-flag": (None, None, None, None, None, None, "1"),
}
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {},
    {"SGLANG_ENABLE_SPEC_V2": "0"},
    {"CUDA_VISIBLE_DEVICES": "0,1"},
)


def launches() -> list[dict[str, Any]]:
    """A seeded sample of the grid, so that the test is the same every time."""
    grid = list(itertools.product(MODELS, *OPTIONS.values(), ENVIRONMENTS))
    chosen = random.Random(11).sample(grid, COUNT)
    return [
        {
            "argv": [
                *("--model-path", model),
                *itertools.chain.from_iterable(
                    (flag, value) for flag, value in zip(OPTIONS, values, strict=True) if value
                ),
            ],
            "env": env,
        }
        for model, *values, env in chosen
    ]


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer without what is bound to differ: time, numbering, the identity of frames."""
    kept = {k: v for k, v in answer.items() if k not in ("id", "seconds", "output", "imported")}
    kept["events"] = [
        {
            **event,
            "stack": [frame[:3] for frame in event["stack"]],
            "decided": [frame[:3] for frame in event.get("decided") or ()],
        }
        for event in answer.get("events", ())
    ]
    return kept


def test_a_warm_child_equals_a_bare_one_on_every_launch() -> None:
    asked = launches()
    held, device, hub = capsules.ensure("0.5.11"), gpu("B200").as_device(), hub_for_catalog()
    with Worker(held, device, hub, bare=True) as child:
        bare = dict(child.map("resolve", asked, jobs=2))
    kinds = agree(asked, forked(asked), bare)
    assert kinds >= {"resolved", "raised", "exit"}  # the sample is worth comparing


def test_forked_equals_fresh() -> None:
    asked = launches()[:IN_SUITE]
    agree(asked, forked(asked), alone(asked))


def forked(asked: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The answers of forks of one warm child."""
    held, device, hub = capsules.ensure("0.5.11"), gpu("B200").as_device(), hub_for_catalog()
    with Worker(held, device, hub, warmup=[asked[0]["argv"]]) as warm:
        return dict(warm.map("resolve", asked, jobs=2))


def alone(asked: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The answers of a process for each launch."""
    held, device, hub = capsules.ensure("0.5.11"), gpu("B200").as_device(), hub_for_catalog()

    def fresh(request: dict[str, Any]) -> dict[str, Any]:
        with Worker(held, device, hub, env=request["env"], bare=True) as own:
            return own.call("resolve", **request)

    with ThreadPoolExecutor(2) as executor:
        return dict(enumerate(executor.map(fresh, asked)))


def agree(
    asked: list[dict[str, Any]], one: dict[int, dict[str, Any]], other: dict[int, dict[str, Any]]
) -> set[str]:
    """Assert that both agree on each launch; returns the kinds of outcome."""
    for number, request in enumerate(asked):
        assert comparable(one[number]) == comparable(other[number]), request
    return {answer["outcome"]["kind"] for answer in one.values()}


if __name__ == "__main__":
    everything = launches()
    found = agree(everything, forked(everything), alone(everything))
    assert found >= {"resolved", "raised", "exit"}
    print(f"{COUNT} launches agree; outcomes: {', '.join(sorted(found))}")
