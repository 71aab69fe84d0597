"""Large pages: which mappings count, and that asking for them harms nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from casebook_inside import largepages


@pytest.mark.parametrize(
    ("line", "bounds"),
    [
        ("1000-3000 rw-p 00000000 00:00 0", (0x1000, 0x3000)),
        ("1000-3000 rw-p 00000000 00:00 0    [heap]", (0x1000, 0x3000)),
        ("1000-3000 rw-p 00000000 00:00 0    [stack]", None),
        ("1000-3000 r--p 00000000 00:00 0", None),
        ("1000-3000 rw-s 00000000 00:00 0", None),
        ("1000-3000 rw-p 00001000 08:01 42   /usr/lib/x y.so", None),
    ],
)
def test_ordinary_memory(line: str, bounds: tuple[int, int] | None) -> None:
    assert largepages.private_writable(line) == bounds


def test_a_private_copy_of_a_file_counts_where_asked() -> None:
    line = "1000-3000 rw-p 00001000 08:01 42   /usr/lib/x y.so"
    assert largepages.private_writable(line, files=True) == (0x1000, 0x3000)
    assert largepages.private_writable(line.replace("rw-p", "rw-s"), files=True) is None


def test_memory_keeps_its_contents() -> None:
    code = (
        "from casebook_inside import largepages\n"
        "data = [bytes([n % 251]) * 4096 for n in range(8192)]\n"
        "made = largepages.enlarge()\n"
        "assert made >= 0\n"
        "assert all(d == bytes([n % 251]) * 4096 for n, d in enumerate(data))\n"
    )
    path = largepages.__file__.rpartition("/casebook_inside/")[0]
    program = f"import sys; sys.path.insert(0, {path!r})\n{code}"
    subprocess.run([sys.executable, "-c", program], check=True)
