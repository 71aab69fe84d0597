"""Copy the pages that every launch writes before a launch is there to wait for it.

A fork shares its parent's memory, and each page it writes is first copied: two thousand small stops, a
third of a launch's time. They are the same pages each time. So one launch is watched, and each waiting
fork then has the kernel copy those pages at once.

Linux 5.14 and later; where the kernel will not, nothing happens and all works as before.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterable
from typing import Any

Span = tuple[int, int]
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of <linux/mman.h>
_OURS = 1 << 56 | 1 << 63  # of /proc/self/pagemap: mapped by this process alone, and present
_FILE = 1 << 61
NEAR_PAGES = 4  # apart at most: then they are copied as one, for a page costs less than a call


def owned(bounds: Span) -> list[int]:
    """Numbers of the pages of a mapping, ``(start, end)``, that this process shares with no other."""
    start, end = bounds
    first = start // mmap.PAGESIZE
    entries = array.array("Q")
    with contextlib.suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(first * 8)
        entries.frombytes(pagemap.read((end - start) // mmap.PAGESIZE * 8))
    return [
        first + number
        for number, entry in enumerate(entries)
        if entry & _OURS == _OURS and not entry & _FILE
    ]


def written(mappings: Iterable[Span]) -> list[Span]:
    """The parts of these mappings, ``(start, end)``, that a fork wrote: no longer its parent's, too.

    Give the parent's mappings: where the fork has others, the next one has none to copy.
    """
    return [span for bounds in mappings for span in spans(owned(bounds))]


def spans(pages: Iterable[int]) -> list[Span]:
    """Pages, by their numbers, as spans of memory ``(address, bytes)``."""
    found: list[list[int]] = []
    for page in sorted(pages):
        if found and page - found[-1][1] <= NEAR_PAGES:
            found[-1][1] = page
        else:
            found.append([page, page])
    return [(first * mmap.PAGESIZE, (last - first + 1) * mmap.PAGESIZE) for first, last in found]


def available() -> bool:
    """Whether this kernel tells which pages are ours, and copies them when asked."""
    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        held = ctypes.c_char.from_buffer(page)
        copied = copy([(ctypes.addressof(held), mmap.PAGESIZE)]) == 1
        del held  # or the page cannot be given back
    return copied and os.access("/proc/self/pagemap", os.R_OK)


def copy(parts: Iterable[Span]) -> int:
    """Make these parts of memory this process's own, as writing to them would; returns how many were."""
    madvise: Any = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return sum(madvise(address, size, _POPULATE_WRITE) == 0 for address, size in parts)
