"""A waiting fork gets the pages that launches write, and nothing but the cost of a launch changes."""

import json
import mmap
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casebook_inside import pages

FORK = """
import ctypes, json, mmap, os, sys
from casebook_inside import pages

size = 64 * mmap.PAGESIZE
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = bytes(range(256)) * (size // 256)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
own = lambda: len(pages.owned((start, start + size)))
reader, writer = os.pipe()
if os.fork() == 0:
    before = own()
    memory[0] = 7  # an ordinary write: one page
    written = own()
    spans = pages.written([(start, start + size)])
    copied = pages.copy([(start, size)])
    after = own()
    same = memory[:] == bytes([7]) + (bytes(range(256)) * (size // 256))[1:]
    nowhere = pages.copy([(mmap.PAGESIZE, mmap.PAGESIZE)])
    os.write(writer, json.dumps([before, written, spans == [(start, mmap.PAGESIZE)], copied, after, same, nowhere]).encode())
    os._exit(0)
os.wait()
print(os.read(reader, 1000).decode())
print(memory[0])
"""


@pytest.mark.skipif(not pages.available(), reason="a kernel that does not copy when asked")
def test_copying_makes_pages_a_forks_own_and_changes_no_byte() -> None:
    inside = Path(pages.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(inside)},
    )
    assert done.returncode == 0, done.stderr
    told, parents = done.stdout.splitlines()
    before, written, spans, copied, after, same, nowhere = json.loads(told)
    assert copied == 1
    assert (before, written, after) == (0, 1, 64)
    assert spans
    assert same
    assert nowhere == 0
    assert parents == "0"


@given(st.sets(st.integers(0, 10_000)))
def test_spans_hold_every_page_and_few_others(numbers: set[int]) -> None:
    found = pages.spans(numbers)
    held: list[int] = []
    for address, size in found:
        first = address // mmap.PAGESIZE
        held += range(first, first + size // mmap.PAGESIZE)
    assert held == sorted(set(held))
    assert numbers <= set(held)
    assert len(held) <= max(0, len(numbers) * pages.NEAR_PAGES)
