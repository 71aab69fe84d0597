"""The errors that end a start-up, read from a log: which of SGLang's own, and what was being done.

The four messages that concern memory name their figures, and an allocator's error names what it lacked;
both are kept as numbers. What was being done is told by the functions of the traceback, where there is
one, for the message alone does not say whether weights, a pool or a graph asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from casebook.catalog.gpus import GIB
from casebook.measure.lines import Message, Source
from casebook.measure.model import Failure, FailureKind

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": GIB}
_AMOUNT = r"(\d{1,9}(?:\.\d{1,4})?) (bytes|KiB|MiB|GiB)"
_MESSAGES: tuple[tuple[re.Pattern[str], FailureKind], ...] = (
    (re.compile(r"Not enough GPU memory for hybrid"), "hybrid state does not fit"),
    (re.compile(r"state cache is too small to serve"), "too few state slots"),
    (re.compile(r"capped to 0 by the mamba state cache"), "too few state slots"),
    (re.compile(r"Loaded weights leave no GPU memory"), "weights leave no room"),
    (re.compile(r"Not enough memory\. Please try to increase"), "not enough memory"),
    (
        re.compile(
            r"\bOutOfMemoryError\b|(?:CUDA|HIP|XPU|NPU|MUSA) out of memory"
            r"|(?:CUDA|HIP) error: out of memory|(?:Cuda|NCCL) \w+.*out of memory"
        ),
        "out of memory",
    ),
    (re.compile(r"(?:Prefill|Decode) out of memory|alloc_req_slots runs out"), "pool exhausted"),
)
_ENDS = re.compile(
    r"hit an exception|^Traceback \(most recent call last\)|scheduler is dead|scheduler died"
    r"|exit code:? ?-?\d|terminated with -?\d{1,4}$"
)
_CODE = re.compile(r"(?:exit code:? ?|terminated with )(-?\d{1,4})\b", re.IGNORECASE)
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b(?::|$)")
_WHERE: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"in (?:capture|_?init_(?:device|decode|piecewise|prefill)\w*graph\w*|init_cuda_graphs|_?capture_\w+|\w*[Gg]raph\w*capture\w*)\b"), "capturing graphs"),
    (re.compile(r"in _?init_mamba_pool\b|in \w*mamba\w*pool\w*\b"), "allocating the state pool"),
    (re.compile(r"in (?:init_memory_pool|_init_pools|_create_buffers|_init_kv_pool\w*)\b"), "allocating the KV cache"),
    (re.compile(r"in (?:load_model|load_weights|_?initialize_model|create_weights)\b"), "loading weights"),
    (re.compile(r"in (?:run_batch|forward_batch_generation|event_loop_\w+)\b"), "serving"),
)  # fmt: skip
_FACTS: tuple[tuple[str, re.Pattern[str], float], ...] = (
    ("total_rest_memory", re.compile(r"total_rest_memory=(-?\d{1,7}\.\d{1,4}) GB"), GIB),
    ("max_mamba_cache_size", re.compile(r"max_mamba_cache_size=(-?\d{1,12})\b"), 1),
    ("mamba_cache_per_req", re.compile(r"mamba_cache_per_req=(\d{1,9}\.\d{1,4}) MB"), 2**20),
    ("mamba_ratio", re.compile(r"mamba_ratio=(\d{1,4})\b"), 1),
    ("max_num_reqs", re.compile(r"max_num_reqs=(-?\d{1,9})\b"), 1),
    ("mem_fraction_static", re.compile(r"mem[-_]fraction[-_]static=(\d?\.\d{1,18}|\d)(?!\d)"), 1),
    ("raise_above", re.compile(r"Raise --mem-fraction-static above (\d\.\d{1,6})"), 1),
    ("minimum_viable", re.compile(r"available/pre = (\d\.\d{1,6})"), 1),
)  # fmt: skip
_AMOUNTS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("requested", re.compile(rf"Tried to allocate {_AMOUNT}")),
    ("total", re.compile(rf"total capacity of {_AMOUNT}")),
    ("free", re.compile(rf"of which {_AMOUNT} is free")),
    ("in_use", re.compile(rf"this process has {_AMOUNT} memory in use")),
    ("allocated", re.compile(rf"allocated memory {_AMOUNT} is allocated by PyTorch")),
    ("reserved", re.compile(rf"and {_AMOUNT} is reserved by PyTorch but unallocated")),
)


def read_failure(message: Message, source: Source) -> Failure | None:
    """The failure that ``message`` tells, with its traceback's figures; None if it tells none."""
    kind = _kind(message.text)
    match = _ENDS.search(message.text)
    if kind is None and match is None:
        return None
    told = "hit an exception" in message.text or message.text.startswith("Traceback")
    body = list(source.following(message.line)) if told else []
    plain = message.text.startswith("Traceback") and not message.prefixed
    if plain and not any("sglang" in content for _, content in body):
        return None
    text, line = message.text, message.line
    for number, content in body:
        named = _kind(content)
        if named is not None:
            kind, text, line = named, content, number
            break
        if kind is None and _EXCEPTION.match(content.strip()):
            text, line = content, number
    if kind is None:
        code = found[1] if (found := _CODE.search(message.text)) else ""
        if code == "0":
            return None
        kind = "killed" if code in ("-9", "137") else "exception"
    whole = " ".join([text, *(content for number, content in body if number > line)])[:4096]
    facts = _facts(whole if kind != "exception" else text)
    requested = facts.get("requested")
    return Failure(
        kind,
        " ".join(text.split())[:400],
        line,
        _where(content for _, content in body),
        None if requested is None else round(requested),
        facts,
        provisional=plain and kind == "exception",
    )


def first_of_each(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """In the order of lines; a traceback's own message, met again as a line, is not told twice."""
    kept: dict[tuple[str, int], Failure] = {}
    for failure in sorted(failures, key=lambda f: f.line):
        key = (failure.kind, failure.line)
        before = kept.get(key)
        kept[key] = (
            failure if before is None else replace(before, where=before.where or failure.where)
        )
    return tuple(kept.values())


def _kind(text: str) -> FailureKind | None:
    return next((kind for pattern, kind in _MESSAGES if pattern.search(text)), None)


def _facts(text: str) -> dict[str, float]:
    facts: dict[str, float] = {}
    for name, pattern, unit in _FACTS:
        if match := pattern.search(text):
            facts[name] = float(match[1]) * unit
    for name, pattern in _AMOUNTS:
        if match := pattern.search(text):
            facts[name] = float(match[1]) * _UNITS[match[2]]
    return facts


def _where(frames: Iterable[str]) -> str | None:
    """The innermost known step: frames go from the outside in."""
    found = None
    for frame in frames:
        if frame.lstrip().startswith("File "):
            found = next((step for pattern, step in _WHERE if pattern.search(frame)), found)
    return found
