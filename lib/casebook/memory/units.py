"""Sizes as people write them."""

from __future__ import annotations

import math
import re

_UNITS = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "kib": 2**10,
    "m": 10**6, "mb": 10**6, "mib": 2**20,
    "g": 10**9, "gb": 10**9, "gib": 2**30,
    "t": 10**12, "tb": 10**12, "tib": 2**40,
}  # fmt: skip
_SIZE = re.compile(
    r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|nan|inf)\s*([a-z]*)\s*", re.IGNORECASE
)


def parse_bytes(text: str) -> int:
    """``51.2GiB`` or ``180 GB`` in bytes. Raises ValueError, in one sentence, for anything else.

    ``GB`` is 10^9 here as everywhere but in SGLang's logs, where it is GiB.
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is no size; write something like 51.2GiB.")
    value = float(match[1])
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{text!r} is no size that memory can have; write something like 51.2GiB.")
    return round(value * _UNITS[match[2].lower()])
