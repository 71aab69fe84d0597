"""Fewer running requests than asked for: which limit set them, by name.

The question that users of hybrid models put most: "I asked for 32, I got 9". The server's arguments go on
saying 32; only one line of the start-up log tells the cap. A report's own figures decide which limit it
was, and where the catalog has the model's layers the release's own sizing code is asked as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from casebook.launch import Launch
from casebook.measure import Published, published
from casebook.memory.closed_form import LIMITS

FLAG, STATE_SLOTS, KV_CACHE, ESTIMATE = LIMITS
SPECULATIVE_DEFAULT = 48
"""What SGLang sets ``max_running_requests`` to under speculation where it is not given."""
LEAST_ESTIMATE = 2048
"""The least that SGLang estimates from the tokens where nothing is asked for."""
STRATEGIES = {"no_buffer": 3, "extra_buffer": 5, "extra_buffer_lazy": 4}
"""State slots that a running request reserves, by strategy, with the overlap scheduler on."""


@dataclass(frozen=True)
class Cap:
    """What bounds the running requests of one start-up."""

    row: str
    asked: int | None
    got: int
    limit: str
    """A name of ``closed_form.LIMITS``."""
    slots: int | None
    slots_per_request: int | None
    inferred: bool
    """Whether slots per request follow from the figures and not from the flags or the log's line."""
    workers: int
    """Workers of data parallelism, which share what is asked for."""
    source: str

    @property
    def sentence(self) -> str:
        """The limit, and the arithmetic that gives the number."""
        asked = f"{self.asked} asked for, " if self.asked is not None else ""
        if self.limit == STATE_SLOTS and self.slots is not None:
            return (
                f"{asked}{self.got} run: {self.slots} state slots at {self.slots_per_request} a request "
                f"({self.slots} // {self.slots_per_request} = {self.got})."
            )
        return f"{asked}{self.got} run: {self._reason}."

    @property
    def _reason(self) -> str:
        if self.limit == FLAG and self.asked is None:
            if self.workers * self.got == SPECULATIVE_DEFAULT:
                return f"SGLang sets {SPECULATIVE_DEFAULT} under speculation, {self.workers} workers share"
            return f"a limit that the report does not show; {self.slots} slots would serve more"
        return {
            STATE_SLOTS: (
                f"fewer than the {LEAST_ESTIMATE} that tokens always allow, so the state slots, "
                "whose number the report does not show"
            ),
            KV_CACHE: "a request needs two tokens of KV cache at least",
            ESTIMATE: "the estimate from the tokens",
            FLAG: "as many as asked for",
        }[self.limit]


def cap_of(row: Published) -> Cap | None:
    """What bounds a published start-up's requests; None where it does not tell."""
    counts = row.counts
    got = counts.get("max_running_requests")
    if got is None:
        return None
    given = Launch(row.flags).value_of("--max-running-requests")
    asked, workers = int(given) if given else None, row.dp or 1
    slots, tokens = counts.get("state_slots"), counts.get("kv_tokens")
    each, inferred = _slots_per_request(row, slots, got)
    speculative = "--speculative-algorithm" in row.flags
    if asked is not None and got == asked // workers:
        limit = FLAG
    elif slots is not None and each is not None and slots // each == got:
        limit = STATE_SLOTS
    elif tokens is not None and got == tokens // 2:
        limit = KV_CACHE
    elif slots is not None or (speculative and got * workers == SPECULATIVE_DEFAULT):
        limit = FLAG  # one that SGLang set, or that the report leaves out
    elif asked is None:
        return None  # a flag left out or the slots: the report does not tell
    else:
        limit = STATE_SLOTS if got < LEAST_ESTIMATE else ESTIMATE
    return Cap(row.id, asked, got, limit, slots, each, inferred, workers, row.source)


def caps(rows: Iterable[Published] | None = None) -> tuple[Cap, ...]:
    """The start-ups that run fewer requests than asked for, or that a limit nobody gave bounds."""
    found = (cap_of(row) for row in (published() if rows is None else rows))
    return tuple(c for c in found if c is not None and (c.limit != FLAG or c.asked is None))


def caps_table(rows: Iterable[Published] | None = None) -> pd.DataFrame:
    """One row a report: asked, got, the limit by name, and the arithmetic."""
    return pd.DataFrame(
        [
            {
                "row": cap.row,
                "asked": cap.asked,
                "got": cap.got,
                "limit": cap.limit,
                "slots": cap.slots,
                "slots_per_request": cap.slots_per_request,
                "why": cap.sentence,
                "source": cap.source,
            }
            for cap in caps(rows)
        ],
        columns=["row", "asked", "got", "limit", "slots", "slots_per_request", "why", "source"],
    ).astype({"asked": "Int64", "slots": "Int64", "slots_per_request": "Int64"})


def _slots_per_request(row: Published, slots: int | None, got: int) -> tuple[int | None, bool]:
    """From the flags where they say it, else the only number that gives what ran."""
    words = row.flags
    for strategy, each in STRATEGIES.items():
        if strategy in words:
            overlap_off = strategy == "extra_buffer" and "--disable-overlap-schedule" in words
            return each - overlap_off, False
    if "--disable-radix-cache" in words:
        return 1, False
    if slots is None:
        return None, False
    fits = [each for each in (5, 4, 3, 1) if slots // each == got]
    return (fits[0], True) if fits else (None, False)
