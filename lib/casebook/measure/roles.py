"""Which worker a line speaks of: the target model, or the draft model that runs beside it.

SGLang prints the same lines for both, the target's first. A whole log is told by its order, but a log
that lost lines is not, so each conclusion is drawn from what is there: the name of the model's class, a
pool of state (only the target has one), two blocks where one would be ambiguous. What is left to order
alone is marked as assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from casebook.measure.formats import Event
from casebook.measure.model import Free, Graph, KvPool, Load, Reading, Role

_DRAFT_CLASS = re.compile(
    r"MTP$|NextN$|E[Aa][Gg][Ll][Ee]3?|DFlash|DSpark|Draft|Medusa|AssistantFor|LiLiCorr"
)
_PAIRED_WITHIN = 0.05 * 2**30


@dataclass
class _Block:
    """The pool lines between two ends of allocation."""

    pools: list[Event] = field(default_factory=list)
    state: bool = False
    windows: list[Event] = field(default_factory=list)
    after_capture: list[Event] = field(default_factory=list)
    end: Event | None = None


def loads(events: Sequence[Event], speculative: bool | None, plain_draft: bool) -> tuple[Load, ...]:
    """The loads of one rank. ``plain_draft``: the draft may be a model of an ordinary class."""
    found: list[Load] = []
    begun: Reading | None = None
    for event in events:
        if event.kind == "load begin":
            if begun is not None:
                found.append(Load(None, before=begun))
            begun = event.readings.get("free")
        elif event.kind == "load end":
            after, usage = event.readings.get("free"), event.readings.get("usage")
            if begun is not None and not _fit(begun, usage, after):
                found.append(Load(None, before=begun))
                begun = None
            found.append(Load(None, begun, after, usage, event.words.get("class")))
            begun = None
    if begun is not None:
        found.append(Load(None, before=begun))
    return tuple(_load_roles(found, speculative, plain_draft))


def _fit(before: Reading, usage: Reading | None, after: Reading | None) -> bool:
    if usage is None or after is None:
        return False
    return abs(before.value - usage.value - after.value) <= _PAIRED_WITHIN


def _load_roles(found: list[Load], speculative: bool | None, plain_draft: bool) -> Iterable[Load]:
    target_seen = False
    for load in found:
        if load.model_class and _DRAFT_CLASS.search(load.model_class):
            yield replace(load, role="draft")
        elif speculative is False:
            yield replace(load, role="target")
        elif target_seen:
            yield replace(load, role="draft", assumed=load.model_class is None)
        else:
            target_seen = True
            certain = load.model_class is not None and (not plain_draft or len(found) > 1)
            yield replace(load, role="target", assumed=not certain)


def pools(
    events: Sequence[Event], speculative: bool | None
) -> tuple[tuple[KvPool, ...], tuple[Free, ...]]:
    """``(pools of keys and values, free memory after allocation)`` of one rank."""
    blocks = _blocks(events)
    several = sum(bool(block.pools) for block in blocks) > 1
    ends = sum(block.end is not None for block in blocks)
    kv: list[KvPool] = []
    frees: list[Free] = []
    role: Role | None = "target"
    for block in blocks:
        if role == "target" and kv and not block.state and speculative is not False:
            role = "draft"
        guess = speculative is not False and not several and not block.windows
        this: Role | None = role
        if len(block.pools) > 1 and not _windowed(block) and speculative is not False:
            guess = True  # a window's two pools, or two workers between which a line was lost
            if speculative and role == "target" and _equal_tokens(block.pools):
                kv += [_pool(block.pools[0], "target", True, block)]
                kv += [_pool(event, "draft", True, block) for event in block.pools[1:]]
                this = "draft"
            else:
                kv += [_pool(event, None, True, block) for event in block.pools]
                this = None
        else:
            kv += [_pool(event, this, guess, block) for event in block.pools]
        kv += [_after_capture(event) for event in block.after_capture]
        if block.end is not None:
            free = block.end.readings["free"]
            sure = speculative is False or (ends > 1 and this is not None)
            frees.append(Free(this, free, not sure))
            if speculative is not False:
                role = "draft"
    return tuple(kv), tuple(frees)


def _blocks(events: Sequence[Event]) -> list[_Block]:
    blocks = [_Block()]
    for event in events:
        block = blocks[-1]
        match event.kind:
            case "state pool":
                if block.pools and not block.state:
                    blocks.append(block := _Block())
                block.state = True
            case "kv pool" if event.readings:
                block.pools.append(event)
            case "window":
                block.windows.append(event)
            case "kv after capture":
                block.after_capture.append(event)
            case "load begin" | "load end" if block.pools:
                blocks.append(_Block())
            case "pools end":
                block.end = event
                blocks.append(_Block())
            case _:
                pass
    return blocks


def _equal_tokens(pools: Sequence[Event]) -> bool:
    tokens = {event.readings["tokens"].value for event in pools if "tokens" in event.readings}
    return len(tokens) == 1 and len(pools) == 2


def _windowed(block: _Block) -> bool:
    labels = {event.words.get("label") for event in block.pools}
    return bool(block.windows) or labels >= {"Full", "SWA"}


def _pool(event: Event, role: Role | None, guess: bool, block: _Block) -> KvPool:
    found = event.readings
    tokens = found.get("tokens")
    sizes = {w.words["swa"] for w in block.windows if "swa" in w.words}
    full = {w.words["full"] for w in block.windows if "full" in w.words}
    layers = {"Full": "full", "SWA": "sliding window"}.get(event.words.get("label", ""))
    if layers is None and tokens is not None and sizes != full:
        if str(tokens.value) in full:
            layers = "full"
        elif str(tokens.value) in sizes:
            layers = "sliding window"
    if block.windows and layers is None and len(block.pools) > 1:
        role = None
    if layers is None and block.windows and len(block.pools) == 1 and tokens is not None:
        role = role if not full or str(tokens.value) in full else None
    return KvPool(
        role,
        tokens,
        found.get("k"),
        found.get("v"),
        found.get("total"),
        event.words.get("dtype"),
        layers,  # type: ignore[arg-type]
        "reserved" in event.words,
        guess,
    )


def _after_capture(event: Event) -> KvPool:
    role: Role = "draft" if "draft" in event.words else "target"
    found = event.readings
    return KvPool(
        role, found.get("tokens"), total=found.get("total"), dtype=event.words.get("dtype")
    )


def graphs(events: Sequence[Event], speculative: bool | None) -> tuple[Graph, ...]:
    """The captures of one rank, begun or finished."""
    found: list[Graph] = []
    open_at: dict[str, int] = {}
    for event in events:
        if not event.kind.startswith("graph"):
            continue
        key = event.words["name"]
        name = f"{key} {event.words['step']}" if "step" in event.words else key
        free, usage = event.readings.get("free"), event.readings.get("usage")
        if event.kind == "graph begin":
            open_at[name] = len(found)
            found.append(Graph(name, None, begin=free))
        elif (at := open_at.pop(name, None)) is not None and _same(found[at], usage, free):
            found[at] = replace(found[at], usage=usage, after=free)
        else:
            found.append(Graph(name, None, usage=usage, after=free))
    return tuple(_graph_roles(found, speculative))


def _same(graph: Graph, usage: Reading | None, after: Reading | None) -> bool:
    if graph.begin is None or usage is None or after is None:
        return True
    return abs(graph.begin.value - usage.value - after.value) <= _PAIRED_WITHIN


def _graph_roles(found: list[Graph], speculative: bool | None) -> Iterable[Graph]:
    seen: set[str] = set()
    for graph in found:
        words = graph.name.split()
        if "draft" in words:
            yield replace(graph, role="draft")
        elif "target" in words or speculative is False:
            yield replace(graph, role="target")
        else:  # the names of releases up to 0.5.13, which a draft worker of its own also prints
            twice = sum(other.name == graph.name for other in found) > 1
            named = any("draft" in other.name.split() for other in found)
            role: Role = "draft" if graph.name in seen else "target"
            yield replace(graph, role=role, assumed=not (twice or named))
            seen.add(graph.name)
