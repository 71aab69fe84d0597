"""The division of a rank's memory, as arithmetic on arrays: millions of points a second.

Equal to the release's own code on every point of the grid in ``tests/memory/test_closed_form.py``:
the same operations on the same float64 numbers, in the same order, for the rules by name that
:mod:`casebook.memory.rules` lists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from casebook.catalog.gpus import GIB
from casebook.memory.facts import RankFacts
from casebook.memory.rules import Rules, rules_of

UNSET = -1
"""A limit that was not given."""
# As the child counts them (casebook_inside.sizing.counter), which imports nothing from here.
GRANULE = 2 << 20  # the driver hands out memory in pieces of 2 MiB
LARGE = 10 << 20  # the caching allocator rounds requests from here on to the granule

OUTCOMES = (
    "starts",
    "no state slot fits",
    "weights leave nothing",
    "not enough memory",
    "no request fits",
    "out of memory: request table",
    "out of memory: conv state",
    "out of memory: ssm state",
    "out of memory: intermediate ssm",
    "out of memory: intermediate conv",
    "out of memory: KV cache",
    "out of memory: draft KV cache",
)
"""What becomes of a launch up to the end of its pools; ``Sizes.outcome`` is an index into it."""
LIMITS = ("--max-running-requests", "state slots", "KV cache", "estimate")
"""What bounds the requests; ``Sizes.limit`` is an index into it."""
_FLAG, _SLOTS, _KV, _ESTIMATE = range(len(LIMITS))

Numbers = npt.NDArray[Any]


PIECE = 1 << 13
"""Points that are sized at a time."""


@dataclass(frozen=True)
class Knobs:
    """What may differ from point to point: arrays that broadcast, or plain numbers.

    ``UNSET`` stands for a limit that is not given.
    """

    free_before_bytes: Any
    """Free on the device before the weights are loaded."""
    free_after_bytes: Any
    """Free when the pools are sized: behind the weights, and the draft's where they come first."""
    mem_fraction_static: Any
    mamba_full_memory_ratio: Any = 0.9
    max_mamba_cache_size: Any = UNSET
    max_running_requests: Any = UNSET
    max_total_tokens: Any = UNSET
    draft_weights_bytes: Any = 0
    """Loaded between the target's pools and the draft's, where the release does so."""


@dataclass(frozen=True)
class Sizes:
    """The result per point. Bytes of pools are 0 where the point does not get that far."""

    outcome: Numbers
    limit: Numbers
    tokens: Numbers
    slots: Numbers
    requests: Numbers
    rest_bytes: Numbers
    """What the division has to give: free memory beyond what ``mem_fraction_static`` keeps back."""
    table_bytes: Numbers
    conv_bytes: Numbers
    ssm_bytes: Numbers
    intermediate_ssm_bytes: Numbers
    intermediate_conv_bytes: Numbers
    kv_bytes: Numbers
    draft_kv_bytes: Numbers
    left_bytes: Numbers
    """Free behind all pools: for graphs, activations and everything else."""

    def at(self, index: int) -> dict[str, Any]:
        """One point as plain numbers, with names for outcome and limit."""
        one = {f.name: np.asarray(getattr(self, f.name)).reshape(-1)[index] for f in fields(self)}
        return {
            **{name: int(value) for name, value in one.items()},
            "outcome": OUTCOMES[int(one["outcome"])],
            "limit": LIMITS[int(one["limit"])],
        }


def footprint(size: Numbers, tensors: int) -> Numbers:
    """What the device gives for ``size`` bytes in ``tensors`` equal parts."""
    if tensors == 0:
        return np.zeros_like(size)
    part = size // tensors
    rounded = -(-part // GRANULE) * GRANULE
    return np.where(part < LARGE, part, rounded) * tensors


def size(facts: RankFacts, knobs: Knobs) -> Sizes:
    """Divide. All arithmetic is that of the release named in ``facts``.

    Many points are taken in pieces whose dozens of arrays stay in a processor's cache.
    """
    arrays = np.broadcast_arrays(*(np.asarray(getattr(knobs, f.name)) for f in fields(knobs)))
    shape = arrays[0].shape
    if math.prod(shape) <= PIECE:
        return _size(facts, Knobs(*arrays))
    flat = [array.reshape(-1) for array in arrays]
    starts = range(0, len(flat[0]), PIECE)
    parts = [_size(facts, Knobs(*(a[start : start + PIECE] for a in flat))) for start in starts]
    columns = ([getattr(part, f.name) for part in parts] for f in fields(Sizes))
    return Sizes(*(np.concatenate(column).reshape(shape) for column in columns))


def _size(facts: RankFacts, knobs: Knobs) -> Sizes:
    rules = rules_of(facts.release)
    k = _Arrays(facts, knobs)
    rest = k.free_after - k.free_before * (1 - k.fraction)
    if facts.multimodal_reserve_gib:
        rest = rest - facts.multimodal_reserve_gib
    after_state, slots = _slots(rules, facts, k, rest)
    available = np.trunc(after_state * GIB).astype(np.int64)
    profiled, tokens = _tokens(facts, k, available)
    requests, limit, table = _requests(rules, facts, k, profiled, tokens, slots)
    outcome = np.zeros(k.shape, np.int8)
    if rules.refuses_no_slots:
        _fail(outcome, "no request fits", requests <= 0)
    _fail(outcome, "not enough memory", tokens <= 0)
    if rules.refuses_empty_rest:
        _fail(outcome, "weights leave nothing", after_state <= 0)
    if rules.refuses_no_slots and facts.state is not None:
        _fail(outcome, "no state slot fits", slots <= 0)
    sizes = _Divided(outcome, limit, tokens, slots, requests, table, rest)
    return _allocate(rules, facts, k, sizes)


class _Arrays:
    """The knobs, which are arrays of one shape here, as the rules want them."""

    def __init__(self, facts: RankFacts, knobs: Knobs) -> None:
        (
            free_before,
            free_after,
            self.fraction,
            self.ratio,
            self.slots,
            self.requests,
            self.max_tokens,
            self.draft_weights,
        ) = (getattr(knobs, f.name) for f in fields(knobs))
        self.shape = self.fraction.shape
        self.free_before = _as_told(free_before, facts.ranks)
        self.free_after = _as_told(free_after, facts.ranks)
        self.free_bytes = free_after.astype(np.int64)


def _as_told(free_bytes: Numbers, ranks: int) -> Numbers:
    """Free memory in GiB as SGLang reads it: ranks agree on the least over a float32."""
    told = free_bytes.astype(np.float64) / GIB
    return told.astype(np.float32).astype(np.float64) if ranks > 1 else told


def _per_worker(rules: Rules, facts: RankFacts, requests: Numbers) -> Numbers:
    shared = requests // facts.dp_size
    return np.maximum(1, shared) if rules.at_least_one_request else shared


def _slots(rules: Rules, facts: RankFacts, k: _Arrays, rest: Numbers) -> tuple[Numbers, Numbers]:
    """What the state leaves of ``rest`` (GiB), and the slots."""
    state = facts.state
    if state is None:
        return rest, np.zeros(k.shape, np.int64)
    each, drafts, per_request = state.sized_bytes, facts.draft_tokens, facts.slots_per_request
    wanted = _per_worker(rules, facts, k.requests)
    given = k.slots != UNSET
    by_flag = np.where(k.requests != UNSET, not facts.radix_cache, False) & ~given
    if rules.budget == "intermediate first":
        if drafts:
            rest = rest - each * wanted * drafts / GIB
        share = rest * k.ratio / (1 + k.ratio) * GIB
        by_share = np.trunc(np.floor_divide(share, each)).astype(np.int64)
        if rules.radix_off_default_slots is not None and not facts.radix_cache:
            by_share = np.full(k.shape, rules.radix_off_default_slots // facts.dp_size)
        slots = np.where(given, k.slots // facts.dp_size, np.where(by_flag, wanted, by_share))
        return rest - slots * each / GIB, slots
    padding = 1 if rules.budget == "joint with padding" else 0
    extra = state.extra_bytes if padding else 0
    share = rest * k.ratio / (1 + k.ratio) * GIB
    if drafts:
        share = share - padding * (each * (1 + drafts)) - padding * extra
        per_slot = each * (1 + drafts / per_request) + extra
    else:
        share = share - padding * (each + extra)
        per_slot = each + extra
    by_share = np.trunc(np.floor_divide(share, per_slot)).astype(np.int64)
    slots = np.where(given, k.slots // facts.dp_size, np.where(by_flag, wanted, by_share))
    if drafts:
        served = np.where(by_flag, slots, np.minimum(wanted, slots // per_request))
        rest = rest - each * (served + padding) * drafts / GIB
    return rest - (slots + padding) * (each + extra) / GIB, slots


def _tokens(facts: RankFacts, k: _Arrays, available: Numbers) -> tuple[Numbers, Numbers]:
    """Tokens that memory allows, and those that the pool gets: capped and in whole pages."""
    page = facts.page_tokens
    left = available - facts.fixed_overhead_bytes
    if facts.kv_sized_bytes:
        tokens = left // facts.kv_sized_bytes
    else:
        tokens = np.full(k.shape, facts.context_tokens, np.int64)
    capped = np.where(k.max_tokens == UNSET, tokens, np.minimum(tokens, k.max_tokens))
    return tokens, capped // page * page


def _requests(
    rules: Rules,
    facts: RankFacts,
    k: _Arrays,
    profiled: Numbers,
    tokens: Numbers,
    slots: Numbers,
) -> tuple[Numbers, Numbers, Numbers]:
    """Requests that may run, which limit sets them, and the requests that the table is made for."""
    old = rules.requests == "table of 2048 to 4096"
    basis = profiled if old else tokens
    estimate = np.trunc(basis / facts.context_tokens * 512).astype(np.int64)
    estimate = np.maximum(np.minimum(estimate, 4096), 2048)
    wanted = _per_worker(rules, facts, k.requests)
    limited = k.requests != UNSET
    half = tokens // 2
    if old:
        found = np.where(limited, k.requests, estimate)
        limit = np.where(limited, _FLAG, _ESTIMATE)
    elif rules.requests == "flag or estimate":
        found = np.where(limited, np.minimum(wanted, estimate), np.minimum(estimate, half))
        by_memory = np.where(half < estimate, _KV, _ESTIMATE)
        limit = np.where(limited & (wanted <= estimate), _FLAG, by_memory)
    else:
        found = np.minimum(np.where(limited, wanted, estimate), half)
        limit = np.where(found == half, _KV, np.where(limited, _FLAG, _ESTIMATE))
        limit = np.where(limited & (wanted <= half), _FLAG, limit)
    if facts.state is not None:
        by_slots = slots // facts.slots_per_request
        limit = np.where(by_slots < found, _SLOTS, limit)
        found = np.minimum(found, by_slots)
    table = found
    if old:
        if facts.state is not None and facts.dp_size > 1:
            table = np.minimum(found, wanted) if facts.draft_tokens else found
        # The runner takes the smaller of this and half the tokens when no limit is given.
        found = np.where(limited, np.minimum(table, wanted), np.minimum(table, half))
        limit = np.where(~limited & (half < table), _KV, limit)
    return found, limit.astype(np.int8), table


def _fail(outcome: Numbers, name: str, where: Numbers) -> None:
    """Later calls win: they stand for what the release checks first."""
    outcome[np.broadcast_to(where, outcome.shape)] = OUTCOMES.index(name)


@dataclass(frozen=True)
class _Divided:
    """The division's result, before anything is allocated."""

    outcome: Numbers
    limit: Numbers
    tokens: Numbers
    slots: Numbers
    requests: Numbers
    table: Numbers
    rest: Numbers


def _allocate(rules: Rules, facts: RankFacts, k: _Arrays, divided: _Divided) -> Sizes:
    """Take the pools from the free memory in the order in which SGLang makes them."""
    outcome, tokens, slots = divided.outcome, divided.tokens, divided.slots
    alive = outcome == 0
    free = k.free_bytes
    state = facts.state
    zero = np.zeros(k.shape, np.int64)
    rows = slots + 1
    made: dict[str, Numbers] = {}
    wanted: list[tuple[str, str, Numbers, int]] = [
        (
            "table_bytes",
            "request table",
            (divided.table + facts.table_padding_rows) * facts.table_columns * 4,
            1,
        )
    ]
    if state is not None:
        parts = max(len(state.conv_shapes), 1)
        wanted += [
            ("conv_bytes", "conv state", rows * state.conv_bytes, parts),
            ("ssm_bytes", "ssm state", rows * state.ssm_bytes, 1),
        ]
        if facts.draft_tokens:
            served = divided.table + 1
            ssm = served * state.intermediate_ssm_bytes(facts.draft_tokens)
            conv = served * state.intermediate_conv_bytes(facts.draft_tokens)
            wanted += [
                ("intermediate_ssm_bytes", "intermediate ssm", ssm, 1),
                ("intermediate_conv_bytes", "intermediate conv", conv, parts),
            ]
    pool_rows = tokens + facts.page_tokens
    wanted.append(("kv_bytes", "KV cache", pool_rows * facts.kv_row_bytes, facts.kv_tensors))
    for name, label, taken, tensors in wanted:
        free = _take(made, name, label, np.where(alive, taken, 0), tensors, free, outcome)
        alive = outcome == 0
    if not rules.draft_counted:
        free = free - np.where(alive, k.draft_weights, 0)
    draft_rows = np.where(alive, pool_rows * facts.draft_row_bytes, 0)
    free = _take(
        made, "draft_kv_bytes", "draft KV cache", draft_rows, facts.draft_tensors, free, outcome
    )
    if not rules.refuses_no_slots:  # up to 0.5.12 it is noticed behind the pools
        _fail(outcome, "no request fits", (divided.requests <= 0) & (outcome == 0))
    pools = {name: made.get(name, zero) for name in _POOLS}
    return Sizes(
        outcome=outcome,
        limit=divided.limit,
        tokens=tokens,
        slots=slots,
        requests=divided.requests,
        rest_bytes=np.trunc(divided.rest * GIB).astype(np.int64),
        left_bytes=free,
        **pools,
    )


_POOLS = (
    "table_bytes",
    "conv_bytes",
    "ssm_bytes",
    "intermediate_ssm_bytes",
    "intermediate_conv_bytes",
    "kv_bytes",
    "draft_kv_bytes",
)


def _take(
    made: dict[str, Numbers],
    name: str,
    label: str,
    taken: Numbers,
    tensors: int,
    free: Numbers,
    outcome: Numbers,
) -> Numbers:
    given = footprint(taken, tensors)
    short = given > free
    _fail(outcome, f"out of memory: {label}", short & (outcome == 0))
    made[name] = np.where(short, 0, taken)
    return np.where(short, free, free - given)
