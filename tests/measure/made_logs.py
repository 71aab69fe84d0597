"""Start-up logs with known figures, in the forms of three ages of SGLang.

``test_every_release.py`` proves that the forms are the releases' own; here whole logs are put together,
so that what a reader makes of ranks, workers and lost lines can be held against the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Age = Literal["0.5.9", "0.5.13", "0.5.20"]


@dataclass(frozen=True)
class Made:
    """What a made log's every rank prints, apart from the argument line."""

    lines: Mapping[str, tuple[str, ...]]
    """Rank -> its messages, without the logger's prefix."""
    truth: Mapping[str, Mapping[str, int | float]]
    """Rank -> figure -> GiB with two decimals, or a count."""
    arguments: str


def made_log(
    age: Age = "0.5.20",
    ranks: tuple[str, ...] = ("",),
    *,
    hybrid: bool = True,
    draft: bool = False,
    seed: int = 0,
) -> Made:
    """A start that succeeds. Every figure of every rank differs from every other."""
    lines, truth = {}, {}
    for index, rank in enumerate(ranks):
        lines[rank], truth[rank] = _rank(age, hybrid, draft, index * 7 + seed)
    algorithm = "'EAGLE'" if draft else "None"
    if age == "0.5.20":
        arguments = f"server_args={{'model_path': 'm', 'speculative_algorithm': {algorithm}}}"
    else:
        arguments = f"server_args=ServerArgs(model_path='m', speculative_algorithm={algorithm})"
    return Made(lines, truth, arguments)


def _rank(age: Age, hybrid: bool, draft: bool, shift: int) -> tuple[tuple[str, ...], dict]:
    x = shift / 100
    t: dict[str, int | float] = {
        "free_before_load": 170.0 + x, "weights": 50.5, "free_after_load": 119.5 + x,
        "kv_tokens": 400_000 + shift, "k": 12.21 + x, "v": 12.22 + x,
        "free_after_pools": 24.0 + x, "decode_graphs": 1.31 + x, "prefill_graphs": 2.32 + x,
        "max_total_num_tokens": 400_000 + shift, "chunked_prefill_size": 8192,
        "max_prefill_tokens": 16384, "max_running_requests": 48 + shift, "context_len": 262144,
        "free_at_end": 17.77 + x,
    }  # fmt: skip
    if hybrid:
        t |= {"state_slots": 240 + shift, "conv_state": 0.66 + x, "ssm_state": 33.89 + x}
        if draft:
            t |= {"intermediate_ssm": 27.56 + x, "intermediate_conv": 0.54 + x}
    if draft:
        t |= {
            "draft_free_before_load": 119.4 + x, "draft_weights": 3.1, "draft_free_after_load": 116.3 + x,
            "draft_kv_tokens": 400_000 + shift, "draft_k": 0.76 + x, "draft_v": 0.77 + x,
            "draft_free_after_pools": 22.3 + x, "draft_decode_graphs": 0.41 + x, "draft_extend_graphs": 0.52 + x,
        }  # fmt: skip
    elapsed, dtype = (
        ("elapsed=4.20 s, ", "dtype: torch.bfloat16, ") if age == "0.5.20" else ("", "")
    )

    def load(prefix: str, model: str) -> list[str]:
        before, usage, after = (
            t[f"{prefix}{k}"] for k in ("free_before_load", "weights", "free_after_load")
        )
        return [
            f"Load weight begin. avail mem={before:.2f} GB",
            f"Load weight end. {elapsed}type={model}, avail mem={after:.2f} GB, mem usage={usage:.2f} GB.",
        ]

    def pools(prefix: str) -> list[str]:
        found = []
        if hybrid and not prefix:
            text = (
                f"Mamba Cache is allocated. max_mamba_cache_size: {t['state_slots']}, conv_state size: "
                f"{t['conv_state']:.2f}GB, ssm_state size: {t['ssm_state']:.2f}GB "
            )
            if draft:
                text += (
                    f"intermediate_ssm_state_cache size: {t['intermediate_ssm']:.2f}GB "
                    f"intermediate_conv_window_cache size: {t['intermediate_conv']:.2f}GB "
                )
            found.append(text)
        return [
            *found,
            f"KV Cache is allocated. {dtype}#tokens: {t[prefix + 'kv_tokens']}, K size: "
            f"{t[prefix + 'k']:.2f} GB, V size: {t[prefix + 'v']:.2f} GB",
            f"Memory pool end. avail mem={t[prefix + 'free_after_pools']:.2f} GB",
        ]

    def graph(figure: str, old: str, new: str, before: float) -> list[str]:
        usage = t[figure]
        if age == "0.5.20":
            return [
                f"Capture {new} CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2], avail mem={before:.2f} GB",
                f"Capture {new} CUDA graph end. elapsed=3.00 s, mem usage={usage:.2f} GB, avail mem={before - usage:.2f} GB.",
            ]
        return [
            f"Capture {old} begin. This can take up to several minutes. avail mem={before:.2f} GB",
            f"Capture {old} end. Time elapsed: 3.00 s. mem usage={usage:.2f} GB. avail mem={before - usage:.2f} GB.",
        ]

    target_graphs = [
        *graph(
            "decode_graphs", "cuda graph", f"target {'verify' if draft else 'decode'}", 22.0 + x
        ),
        *graph("prefill_graphs", "piecewise CUDA graph", "target prefill", 20.0 + x),
    ]
    target, drafter = load("", "Qwen3_5ForConditionalGeneration"), []
    if draft:
        drafter = load("draft_", "Qwen3_5ForCausalLMMTP")
        draft_graphs = [
            *graph("draft_decode_graphs", "draft cuda graph", "draft decode", 19.0 + x),
            *graph("draft_extend_graphs", "draft extend cuda graph", "draft extend", 18.6 + x),
        ]
    if not draft:
        body = [*target, *pools(""), *target_graphs]
    elif age == "0.5.20":
        body = [*target, *drafter, *pools(""), *pools("draft_"), *target_graphs, *draft_graphs]
    else:
        body = [*target, *pools(""), *target_graphs, *drafter, *pools("draft_"), *draft_graphs]
    closing = (
        f"max_total_num_tokens={t['max_total_num_tokens']}, chunked_prefill_size=8192, "
        f"max_prefill_tokens=16384, max_running_requests={t['max_running_requests']}, "
        f"context_len=262144, available_gpu_mem={t['free_at_end']:.2f} GB"
    )
    return ("Init torch distributed begin.", *body, closing), t


def stamped(rank: str, text: str) -> str:
    return f"[2026-10-01 12:00:00{' ' if rank else ''}{rank}] {text}"


def whole(made: Made) -> str:
    """The log with ranks one after another and the server's own first and last line."""
    lines = [stamped("", made.arguments)]
    for rank, texts in made.lines.items():
        lines += [stamped(rank, text) for text in texts]
    return "\n".join([*lines, stamped("", "The server is fired up and ready to roll!")]) + "\n"
