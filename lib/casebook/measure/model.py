"""What one rank of one server printed of its memory, as a person can check it against the log.

SGLang writes "GB" and means GiB (2**30 bytes), rounded to 0.01 of it. A :class:`Reading` keeps the value
in bytes, the line it stands on and how coarse the print is, so that a prediction is compared with the
log's own rounding and not with a tolerance somebody chose.

A rank loads and allocates twice where a draft model runs beside the target, in lines of the same form.
:attr:`Measurement.assumed` names the figures whose line does not say which of the two it speaks of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from casebook.catalog.gpus import GIB

LOG_STEP = GIB // 100
"""Bytes between two sizes that the log prints differently."""

ALGORITHM = "speculative_algorithm"

Role = Literal["target", "draft"]
Outcome = Literal["started", "died", "unknown"]
FailureKind = Literal[
    "out of memory",
    "not enough memory",
    "weights leave no room",
    "hybrid state does not fit",
    "too few state slots",
    "pool exhausted",
    "killed",
    "exception",
]


@dataclass(frozen=True)
class Reading:
    """A figure and where it stands: bytes where ``step`` is set, else a count."""

    value: int
    line: int
    step: int = 0
    """The print's rounding in bytes; 0 for a count, which is exact."""

    @property
    def slack(self) -> float:
        """How far the print alone may have moved the value."""
        return self.step / 2 + (2 if self.step else 0)

    def agrees(self, other: float) -> bool:
        """Whether ``other`` would have been printed as this reading."""
        return abs(other - self.value) <= self.slack


@dataclass(frozen=True)
class Load:
    """The loading of one model: free memory before and after, and what went away meanwhile."""

    role: Role | None
    before: Reading | None = None
    after: Reading | None = None
    usage: Reading | None = None
    model_class: str | None = None
    assumed: bool = False


@dataclass(frozen=True)
class StatePool:
    """The pool of recurrent state ("Mamba Cache"). Sizes include the padding slot, ``slots`` does not."""

    slots: Reading | None = None
    conv: Reading | None = None
    ssm: Reading | None = None
    intermediate_ssm: Reading | None = None
    intermediate_conv: Reading | None = None
    replay: Reading | None = None
    """Ring buffers of replayed state, together."""


@dataclass(frozen=True)
class KvPool:
    """One pool of keys and values: either ``k`` and ``v`` are known, or their sum alone."""

    role: Role | None
    tokens: Reading | None = None
    k: Reading | None = None
    v: Reading | None = None
    total: Reading | None = None
    dtype: str | None = None
    layers: Literal["full", "sliding window"] | None = None
    reserved_only: bool = False
    """Only address space is taken yet; the pool is sized after the graphs are captured."""
    assumed: bool = False


@dataclass(frozen=True)
class Free:
    """Free memory once a worker's pools stand."""

    role: Role | None
    free: Reading
    assumed: bool = False


@dataclass(frozen=True)
class Graph:
    """One capture of device graphs. ``usage`` is None where the log ends inside it."""

    name: str
    """As the log names it, e.g. ``target verify``; ``decode`` and ``piecewise`` in old releases."""
    role: Role | None
    begin: Reading | None = None
    """Free memory before."""
    usage: Reading | None = None
    after: Reading | None = None
    assumed: bool = False


@dataclass(frozen=True)
class Cap:
    """A limit that the server says it put on its running requests or its tokens."""

    limit: Literal["state slots", "KV cache", "KV cache after capture", "profiled tokens"]
    to: int
    line: int
    asked: int | None = None
    slots: int | None = None
    slots_per_request: int | None = None


@dataclass(frozen=True)
class Failure:
    """One error that ended a rank, or the server."""

    kind: FailureKind
    text: str
    line: int
    where: str | None = None
    """What was being done, as the traceback or the lines before tell it."""
    requested: int | None = None
    """Bytes that could not be had, where the message says so."""
    facts: Mapping[str, float] = field(default_factory=dict)
    """Figures of the message, by name: bytes, counts and fractions."""
    provisional: bool = False
    """A bare traceback: an end only if nothing of the start follows it."""


@dataclass(frozen=True)
class Measurement:
    """The start of one rank, as far as the log shows it."""

    rank: str
    """The log's own label, e.g. ``DP0 TP1``; empty for a server of one rank."""
    loads: tuple[Load, ...] = ()
    state: StatePool | None = None
    kv_pools: tuple[KvPool, ...] = ()
    frees: tuple[Free, ...] = ()
    graphs: tuple[Graph, ...] = ()
    counts: Mapping[str, Reading] = field(default_factory=dict)
    """The closing line: ``max_total_num_tokens``, ``max_running_requests``, ``context_len``, ..."""
    free_at_end: Reading | None = None
    """``available_gpu_mem`` of the closing line: what is left for activations."""
    caps: tuple[Cap, ...] = ()
    failures: tuple[Failure, ...] = ()
    outcome: Outcome = "unknown"

    @cached_property
    def figures(self) -> Mapping[str, Reading]:
        """Every figure that the log shows, by name, in the order in which SGLang spends memory."""
        return {name: reading for name, reading, _ in _figures(self) if reading is not None}

    @cached_property
    def assumed(self) -> frozenset[str]:
        """Figures taken for the target's (or the draft's) from their order alone."""
        return frozenset(name for name, reading, guess in _figures(self) if reading and guess)

    def get(self, name: str) -> int | None:
        """The value of a figure in bytes, tokens or requests; None if the log does not show it."""
        reading = self.figures.get(name)
        return None if reading is None else reading.value

    @property
    def graph_bytes(self) -> int | None:
        """What all captures shown took together; None if none is shown, or one was not finished."""
        used = [graph.usage for graph in self.graphs]
        return sum(u.value for u in used if u) if used and None not in used else None


def _figures(m: Measurement) -> Iterator[tuple[str, Reading | None, bool]]:
    """``(name, reading, whether its worker is assumed)``; of a name that comes twice, the first."""
    seen: set[str] = set()
    for name, reading, guess in _all_figures(m):
        if reading is not None and name not in seen:
            seen.add(name)
            yield name, reading, guess


def _all_figures(m: Measurement) -> Iterator[tuple[str, Reading | None, bool]]:
    for load in m.loads:
        if load.role:
            prefix = "" if load.role == "target" else "draft_"
            yield f"{prefix}free_before_load", load.before, load.assumed
            yield f"{prefix}weights", load.usage, load.assumed
            yield f"{prefix}free_after_load", load.after, load.assumed
    if m.state:
        for name, attribute in STATE_FIGURES.items():
            yield name, getattr(m.state, attribute), False
    for pool in sorted(m.kv_pools, key=lambda p: p.reserved_only):
        if pool.role and not pool.reserved_only:
            prefix = "" if pool.role == "target" else "draft_"
            prefix += "window_" if pool.layers == "sliding window" else ""
            yield f"{prefix}kv_tokens", pool.tokens, pool.assumed
            yield f"{prefix}k", pool.k, pool.assumed
            yield f"{prefix}v", pool.v, pool.assumed
            yield f"{prefix}kv", pool.total, pool.assumed
    for free in m.frees:
        if free.role:
            prefix = "" if free.role == "target" else "draft_"
            yield f"{prefix}free_after_pools", free.free, free.assumed
    for graph in m.graphs:
        yield f"{_graph_figure(graph)}_graphs", graph.usage, graph.assumed
    yield from ((name, reading, False) for name, reading in m.counts.items())
    yield "free_at_end", m.free_at_end, False


def _graph_figure(graph: Graph) -> str:
    """One name for what releases name otherwise: ``verify`` is the decode step of speculation."""
    same = {"verify": "decode", "piecewise": "prefill"}
    words = [same.get(word, word) for word in graph.name.split() if word not in ("target", "draft")]
    if graph.role == "draft":
        words = ["draft", *(words or ["decode"])]
    return "_".join(words or ["decode"]).lower().replace("-", "_")


STATE_FIGURES = {
    "state_slots": "slots",
    "conv_state": "conv",
    "ssm_state": "ssm",
    "intermediate_ssm": "intermediate_ssm",
    "intermediate_conv": "intermediate_conv",
    "replay_state": "replay",
}


@dataclass(frozen=True)
class Server:
    """One server of a log: its arguments, if the log shows them, and its ranks."""

    first_line: int
    last_line: int
    arguments: Mapping[str, Any] | None = None
    """Field -> value of the line ``server_args=``; in new releases what was asked, not what holds."""
    arguments_line: int | None = None
    stream: str = ""
    """The container or pod whose name the log puts before each line, if it does."""
    ranks: tuple[Measurement, ...] = ()
    failures: tuple[Failure, ...] = ()
    """All failures, also those that name no rank, in the order of their lines."""
    ready_line: int | None = None
    """Where the server says that it is ready."""
    outcome: Outcome = "unknown"

    @property
    def failure(self) -> Failure | None:
        """The failure that explains the end best: the first that is more than "an exception"."""
        named = [f for f in self.failures if f.kind not in ("exception", "killed")]
        return next(iter(named or self.failures), None)

    @property
    def has_memory_lines(self) -> bool:
        """Whether any rank shows a figure; False for a log that was cut, filtered or never got there."""
        return any(rank.figures for rank in self.ranks)

    @property
    def speculative(self) -> bool | None:
        """Whether speculation is on, if the arguments are shown."""
        if self.arguments is None or ALGORITHM not in self.arguments:
            return None
        return self.arguments[ALGORITHM] not in (None, "")
