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
from collections.abc import Iterable
from typing import Any

from casebook_inside import largepages

Span = tuple[int, int]
"""``(address, bytes)`` of neighbouring pages."""
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of <linux/mman.h>
_OURS = 1 << 56 | 1 << 63  # of /proc/self/pagemap: mapped by this process alone, and present
_FILE = 1 << 61
NEAR_PAGES = 4  # between two spans that are copied as one: a page costs less than a call


def owned() -> set[int]:
    """Numbers of the pages of private memory that this process shares with no other."""
    found: set[int] = set()
    with contextlib.suppress(OSError), open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for start, end in largepages.mappings(files=True):
            first = start // mmap.PAGESIZE
            pagemap.seek(first * 8)
            entries = array.array("Q", pagemap.read((end - start) // mmap.PAGESIZE * 8))
            found.update(
                first + number
                for number, entry in enumerate(entries)
                if entry & _OURS == _OURS and not entry & _FILE
            )
    return found


def spans(pages: Iterable[int]) -> list[Span]:
    """Pages, by their numbers, as spans of memory."""
    found: list[list[int]] = []
    for page in sorted(pages):
        if found and page - found[-1][1] <= NEAR_PAGES:
            found[-1][1] = page
        else:
            found.append([page, page])
    return [(first * mmap.PAGESIZE, (last - first + 1) * mmap.PAGESIZE) for first, last in found]


def copy(parts: Iterable[Span]) -> int:
    """Make these parts of memory this process's own, as writing to them would; returns how many were."""
    madvise: Any = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return sum(madvise(address, size, _POPULATE_WRITE) == 0 for address, size in parts)
