"""``read_log``: the servers of a log, and what each of their ranks printed of its memory.

A file may hold several servers, one after the other or one beside the other (containers whose names
stand before each line). A server begins with the line that names its arguments; where that line is
missing, a rank that loads again after it was ready, or after it died, has been started anew. Two
servers that write to one file at the same time, with nothing before their lines, cannot be told apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casebook.errors import LaunchError
from casebook.launch.server_log import parse_arguments
from casebook.measure import roles
from casebook.measure.errors import ForeignLogError, LogError
from casebook.measure.failures import first_of_each, read_failure
from casebook.measure.foreign import seems_to_be
from casebook.measure.formats import Event, read_event
from casebook.measure.lines import Message, open_source
from casebook.measure.model import (
    ALGORITHM,
    Cap,
    Failure,
    Measurement,
    Outcome,
    Reading,
    Server,
    StatePool,
)

MAX_FAILURES = 500
"""A server that fails again and again is not read to the end of its misery."""
_OWN_PER_NODE = {"node_rank", "host", "dist_init_addr", "random_seed", "port", "nccl_port"}


def read_log(text_or_path: str | bytes | Path) -> tuple[Server, ...]:
    """The servers of a log, in the order of their first lines.

    A server whose log shows no figure of memory has empty ranks: see ``Server.has_memory_lines``. Raises
    :class:`ForeignLogError` for another server's log and :class:`LogError` if nothing is SGLang's.
    """
    source = open_source(text_or_path)
    drafts = _Drafts(source.name)
    failures = 0
    for message in source.messages():
        event = read_event(message)
        if event is not None:
            drafts.add(event)
        failure = read_failure(message, source) if failures < MAX_FAILURES else None
        if failure is not None:
            failures += 1
            drafts.fail(message, failure)
    servers = tuple(draft.server() for draft in drafts.all())
    if not any(s.has_memory_lines or s.arguments_line for s in servers):
        if (other := seems_to_be(source.data)) is not None:
            raise ForeignLogError(source.name, *other)
        if not servers:
            raise LogError(
                f"{source.name} has no line of an SGLang server's start; give the log from the "
                "server's first line on."
            )
    return servers


@dataclass
class _Draft:
    """A server while its lines come in."""

    stream: str
    first: int
    last: int
    arguments: Mapping[str, Any] | None = None
    arguments_line: int | None = None
    node_ranks: set[Any] = field(default_factory=set)
    events: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str | None, list[Failure]] = field(default_factory=lambda: defaultdict(list))
    ready: int | None = None

    @property
    def prefixed(self) -> bool:
        """Whether any line of it has the logger's prefix."""
        return any(event.message.prefixed for found in self.events.values() for event in found)

    def _of_rank(self, rank: str) -> list[Event]:
        """A rank's events. Where lines have the logger's prefix, one without is a torn one: not told."""
        found = self.events.get(rank, [])
        return [e for e in found if e.message.prefixed] if self.prefixed else found

    def server(self) -> Server:
        everything = first_of_each(f for found in self.failures.values() for f in found)
        server = Server(
            self.first,
            self.last,
            self.arguments,
            self.arguments_line,
            self.stream,
            failures=everything,
            ready_line=self.ready,
        )
        speculative = _speculative([e for rank in self.events for e in self._of_rank(rank)], server)
        ranks = tuple(
            _measurement(
                rank, self._of_rank(rank), self.failures.get(rank, ()), server, speculative
            )
            for rank in sorted({*self.events, *(r for r in self.failures if r)}, key=_rank_order)
        )
        ranks = tuple(r for r in ranks if r.figures or r.graphs or r.caps or r.failures)
        outcome: Outcome = "unknown"
        if any(failure.line > (self.ready or 0) for failure in everything):
            outcome = "died"
        elif self.ready is not None or any(rank.outcome == "started" for rank in ranks):
            outcome = "started"
        return Server(
            self.first,
            self.last,
            self.arguments,
            self.arguments_line,
            self.stream,
            ranks,
            everything,
            self.ready,
            outcome,
        )


class _Drafts:
    """All servers of a log while its lines come in."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.servers: list[_Draft] = []
        self.current: dict[tuple[str, str | None], _Draft] = {}
        self.latest: dict[str, _Draft] = {}

    def all(self) -> list[_Draft]:
        """Those that hold anything; stray lines make no server where there is one."""
        held = [
            s
            for s in self.servers
            if s.arguments_line or s.events or any(s.failures.values()) or s.ready
        ]
        sure = [s for s in held if s.arguments_line or s.prefixed or any(s.failures.values())]
        return sure or held

    def add(self, event: Event) -> None:
        """Put an event with its server and rank."""
        message = event.message
        if event.kind == "arguments":
            self._arguments(message)
            return
        draft = self._of(message, event.kind)
        draft.last = message.line
        draft.failures[None] = [f for f in draft.failures[None] if not f.provisional]
        if event.kind == "ready":
            draft.ready = draft.ready or message.line
        else:
            draft.events[message.rank].append(event)

    def fail(self, message: Message, failure: Failure) -> None:
        """Put a failure with its server and, where the line names one, its rank."""
        draft = self._of(message, "failure")
        draft.last = max(draft.last, failure.line)
        if not (failure.provisional and draft.ready):
            draft.failures[message.rank if message.prefixed else None].append(failure)

    def _arguments(self, message: Message) -> None:
        try:
            _, found = parse_arguments(message.text, self.name, message.line)
        except (LaunchError, ValueError):
            found = None
        before = self.latest.get(message.stream)
        if before is not None and found is not None and _same_server(before, found):
            before.node_ranks.add(found.get("node_rank"))
            return
        unfinished = {
            key: old
            for key, old in self.current.items()
            if key[0] == message.stream
            and key[1] is not None
            and old.prefixed
            and old.events.get(key[1])
            and not _is_over(old, key[1], prefixed=True)
        }
        draft = self._new(message)
        # Until such a rank is seen to start, its lines are the old server's.
        self.current |= unfinished
        draft.arguments, draft.arguments_line = found, message.line
        draft.node_ranks.add((found or {}).get("node_rank"))

    def _of(self, message: Message, kind: str) -> _Draft:
        key = (message.stream, message.rank)
        draft = self.current.get(key)
        latest = self.latest.get(message.stream)
        begins = kind in ("init", "load begin")
        if draft is not None and latest is not None and begins:
            draft = latest
        if draft is None:
            draft = latest or self._new(message)
        if (begins or kind == "load end") and _is_over(draft, message.rank, message.prefixed):
            draft = self._new(message)
        self.current[key] = draft
        return draft

    def _new(self, message: Message) -> _Draft:
        draft = _Draft(message.stream, message.line, message.line)
        self.servers.append(draft)
        self.latest[message.stream] = draft
        self.current = {k: v for k, v in self.current.items() if k[0] != message.stream} | {
            (message.stream, message.rank): draft
        }
        return draft


def _is_over(draft: _Draft, rank: str, prefixed: bool) -> bool:
    """Whether this rank of the server was ready or had died, as lines of the same kind tell it."""
    if draft.failures.get(rank) or draft.failures.get(None):
        return True
    closed = [e for e in draft.events.get(rank, ()) if e.kind == "closing"]
    return draft.ready is not None or any(e.message.prefixed == prefixed for e in closed)


def _same_server(before: _Draft, found: Mapping[str, Any]) -> bool:
    """Another node of the same server, or the same line written twice."""
    if before.arguments is None or any(before.failures.values()):
        return False
    ours = {k: v for k, v in before.arguments.items() if k not in _OWN_PER_NODE}
    theirs = {k: v for k, v in found.items() if k not in _OWN_PER_NODE}
    if ours != theirs:
        return False
    return found.get("node_rank") not in before.node_ranks or not (before.events or before.ready)


def _rank_order(rank: str) -> tuple[tuple[str, int], ...]:
    parts = []
    for part in rank.split():
        name = part.rstrip("0123456789")
        parts.append((name, int(part[len(name) :] or 0)))
    return tuple(parts)


def _measurement(
    rank: str,
    events: Sequence[Event],
    failures: Iterable[Failure],
    server: Server,
    speculative: bool | None,
) -> Measurement:
    algorithm = (server.arguments or {}).get(ALGORITHM)
    kv_pools, frees = roles.pools(events, speculative)
    closing = [event for event in events if event.kind == "closing"]
    counts: dict[str, Reading] = {}
    for event in closing:
        counts |= {k: v for k, v in event.readings.items() if k != "free"}
    free = next((e.readings["free"] for e in reversed(closing) if "free" in e.readings), None)
    failed = first_of_each(failures)
    outcome: Outcome = "unknown"
    done = max([server.ready_line or 0, *(event.line for event in closing)])
    if any(failure.line > done for failure in failed):
        outcome = "died"
    elif closing or server.ready_line is not None:
        outcome = "started"
    return Measurement(
        rank,
        roles.loads(events, speculative, algorithm == "STANDALONE"),
        _state(events),
        kv_pools,
        frees,
        roles.graphs(events, speculative),
        counts,
        free,
        tuple(_cap(event) for event in events if event.kind == "cap"),
        failed,
        outcome,
    )


def _speculative(events: Sequence[Event], server: Server) -> bool | None:
    if server.speculative is not None:
        return server.speculative and (server.arguments or {}).get(ALGORITHM) != "NGRAM"
    for event in events:
        name = event.words.get("name", "").split()
        if "verify" in name or "draft" in name or "intermediate_ssm" in event.readings:
            return True
        if name == ["target", "decode"] or (event.kind == "state pool" and _whole(event)):
            return False
    return None


def _whole(event: Event) -> bool:
    """A full line of the state pool; without intermediate state there is no speculation."""
    return {"slots", "conv", "ssm"} <= event.readings.keys()


def _state(events: Sequence[Event]) -> StatePool | None:
    found: dict[str, Reading] = {}
    for event in events:
        if event.kind in ("state pool", "replay"):
            found = {**event.readings, **found}
    return StatePool(**found) if found else None


def _cap(event: Event) -> Cap:
    words = event.words
    return Cap(
        words["limit"],  # type: ignore[arg-type]
        int(words["to"]),
        event.line,
        int(words["asked"]) if "asked" in words else None,
        int(words["slots"]) if "slots" in words else None,
        int(words["each"]) if "each" in words else None,
    )
