"""The log lines that a release's source can print, rendered with sample values.

The source is parsed, never run: each call of a logger (or raise of an error) whose format string holds
one of the phrases is rendered once for each branch of its conditional parts. Sample values differ from
one another, so that a reader that mixed two up would be found out.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PHRASES = (
    "Load weight ",
    "Mamba Cache is allocated",
    "ReplaySSM ring buffers allocated",
    "KV Cache ",
    "KV cache allocated",
    "SWAKVPool ",
    "sliding window memory pool",
    "Memory pool end",
    "graph begin",
    "graph end",
    "draft extend begin",
    "draft extend end",
    "max_total_num_tokens={",
    "is capped to",
    "max_running_requests was reduced",
    "max_running_requests %d ->",
    "larger than the profiled",
    "fired up and ready",
    "Not enough GPU memory for hybrid",
    "Not enough memory. Please",
    "Loaded weights leave",
    "state cache is too small",
)
CALLS = {
    "info", "warning", "error", "log_info_on_rank0", "rank0_log", "print_warning_once",
    "RuntimeError", "ValueError",
}  # fmt: skip
NOT_SERVING = ("mlx", "multimodal_gen", "disaggregation")
_PERCENT = re.compile(r"%(?:\.(\d))?([dsfr])")


@dataclass(frozen=True)
class Line:
    """One rendered line and the numbers that stand in it."""

    text: str
    file: str
    number: int
    call: str
    sizes: tuple[str, ...]
    """Numbers printed with the unit GB."""


def lines_of(srt: Path) -> Iterator[Line]:
    for path in sorted(srt.rglob("*.py")):
        if any(part in NOT_SERVING for part in path.relative_to(srt).parts):
            continue
        text = path.read_text(encoding="utf-8")
        if not any(phrase.rstrip("{=").split("%")[0] in text for phrase in PHRASES):
            continue
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.Call) or _name(node) not in CALLS:
                continue
            for argument in node.args:
                for rendered in _render(argument, itertools.count(1)):
                    if any(_phrase_in(rendered, phrase) for phrase in PHRASES):
                        sizes = tuple(re.findall(r"(\d+\.\d+) ?GB\b", rendered))
                        file = str(path.relative_to(srt))
                        yield Line(rendered, file, node.lineno, _name(node), sizes)


def _phrase_in(rendered: str, phrase: str) -> bool:
    if phrase == "max_total_num_tokens={":
        return rendered.startswith("max_total_num_tokens=")
    return re.search(re.escape(phrase).replace("%d", r"\d+"), rendered) is not None


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _render(node: ast.expr, samples: Iterator[int]) -> list[str]:
    """Every text ``node`` can be; nothing if it is no text made of literals and values."""
    if isinstance(node, ast.Constant):
        return [_percents(node.value, samples)] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = [_part(value, samples) for value in node.values]
        return ["".join(choice) for choice in itertools.product(*parts)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _render(node.left, samples), _render(node.right, samples)
        return [a + b for a in left or [""] for b in right or [""]] if left or right else []
    if isinstance(node, ast.IfExp):
        return _render(node.body, samples) + _render(node.orelse, samples)
    return []


def _part(node: ast.expr, samples: Iterator[int]) -> list[str]:
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    assert isinstance(node, ast.FormattedValue)
    if isinstance(node.value, ast.IfExp) and node.format_spec is None:
        return [
            text if "{" not in text else "sample"
            for branch in (node.value.body, node.value.orelse)
            for text in (_render(branch, samples) or ["sample"])
        ]
    written = ast.unparse(node.value)
    sample = next(samples)
    if node.format_spec is not None:
        spec = ast.unparse(node.format_spec)
        decimals = int(match[1]) if (match := re.search(r"\.(\d)f", spec)) else 2
        return [f"{10 + sample}.{str(sample * 37 % 100).zfill(2)}".ljust(3 + decimals, "0")]
    if "dtype" in written:
        return ["torch.bfloat16"]
    if "__name__" in written:
        return ["Qwen3_5ForConditionalGeneration"]
    if "cache_name" in written:
        return ["KV Cache", "Full KV Cache", "SWA KV Cache"]
    if "capture_name" in written:
        return ["target decode", "target verify", "draft prefill"]
    if "graph_backend" in written:
        return ["cuda graph", "CUDA graph", "NPU graph"]
    if "backend" in written:
        return ["full"]
    if "capture_bs" in written or ("num_tokens" in written and "capture" in written):
        return ["[1, 2, 4]"]
    if "fraction" in written:
        return ["0.85"]
    prefix = "self.server_args.mem_fraction_static=" if written.endswith("=") else ""
    return [f"{prefix}{1000 + sample}"]


def _percents(text: str, samples: Iterator[int]) -> str:
    def one(match: re.Match[str]) -> str:
        sample = next(samples)
        if match[2] == "d":
            return str(1000 + sample)
        return (
            f"{10 + sample}.{str(sample * 37 % 100).zfill(2)}" if match[2] == "f" else "torch.int8"
        )

    return _PERCENT.sub(one, text)
