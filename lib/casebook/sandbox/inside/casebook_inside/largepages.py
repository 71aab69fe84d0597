"""Put the server's memory on large pages, which makes its forks cheap.

A fork copies its parent's page table, and takes it down again when it ends. SGLang and what it imports
fill 400 MB: with small pages that is a hundred thousand entries, half of a launch's system time; with
large ones it is two hundred.

Linux 6.1 and later; where the kernel will not, nothing happens and all works as before.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

_HUGEPAGE, _COLLAPSE = 14, 25  # MADV_HUGEPAGE and MADV_COLLAPSE of <linux/mman.h>
LARGE_BYTES = 2 << 20


def enlarge() -> int:
    """Collapse this process's ordinary memory into large pages; returns how many were made."""
    madvise: Any = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    made = 0
    for start, end in mappings():
        first, last = -(-start // LARGE_BYTES) * LARGE_BYTES, end // LARGE_BYTES * LARGE_BYTES
        if first >= last or madvise(first, last - first, _HUGEPAGE) != 0:
            continue
        for address in range(first, last, LARGE_BYTES):
            made += madvise(address, LARGE_BYTES, _COLLAPSE) == 0
    return made


def private_writable(line: str, files: bool = False) -> tuple[int, int] | None:
    """Bounds of ordinary memory (heap, anonymous) from a line of ``/proc/self/maps``; else None.

    With ``files`` also of a file's private copy, such as a library's variables.
    """
    bounds, rights, _offset, _device, inode, *name = line.split(maxsplit=5)
    special = bool(name) and name[0].startswith("[") and name[0].strip() != "[heap]"
    if rights != "rw-p" or special or (inode != "0" and not files):
        return None
    start, _, end = bounds.partition("-")
    return int(start, 16), int(end, 16)


def mappings(files: bool = False) -> Iterator[tuple[int, int]]:
    """Bounds of this process's ordinary memory; with ``files`` also of private copies of files."""
    with contextlib.suppress(OSError):  # no /proc here
        with open("/proc/self/maps") as maps:
            lines = maps.read().splitlines()
        yield from filter(None, (private_writable(line, files) for line in lines))
