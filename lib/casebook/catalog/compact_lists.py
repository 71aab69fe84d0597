"""Lists as one line: runs of repeated items, and ranges of integers.

runs
    ``"(linear_attention*3, full_attention)*16"``: words or integers, repeated and nested.
ranges
    ``"1-3, 5-7, 9, 12-20:4"``: integers in order; ``a-b:s`` counts from a to b in steps of s.

Every encoder either returns something its decoder restores exactly, or raises ``ValueError``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

RunItem = str | int

_FOLD_LIMIT = 160  # folding is cubic in the number of runs; longer lists are only run-length coded
_EXPANSION_LIMIT = 1_000_000  # a pattern that expands to more is a mistake
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)(?![0-9A-Za-z_.])")
_NATURAL = re.compile(r"0|[1-9][0-9]*")
_STEPPED = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)(?::([1-9][0-9]*))?")


def encode_runs(items: Sequence[RunItem]) -> str:
    """The shortest run pattern found for ``items`` (exact; not proven shortest)."""
    runs: list[tuple[str, int]] = []
    for item in items:
        text = _run_atom(item)
        if runs and runs[-1][0] == text:
            runs[-1] = (text, runs[-1][1] + 1)
        else:
            runs.append((text, 1))
    tokens = [text if count == 1 else f"{text}*{count}" for text, count in runs]
    if len(tokens) > _FOLD_LIMIT:
        return ", ".join(tokens)
    return _fold(tokens)


def decode_runs(pattern: str) -> list[RunItem]:
    """The list that a run pattern stands for."""
    if not pattern.strip():
        return []
    items, end = _parse_sequence(pattern, 0)
    if end != len(pattern):
        raise ValueError(f"unexpected {pattern[end]!r} at column {end + 1} of {pattern!r}")
    return items


def _run_atom(item: RunItem) -> str:
    if isinstance(item, bool) or not isinstance(item, str | int):
        raise ValueError(f"a run list holds words and integers, not {item!r}")
    if isinstance(item, int):
        return str(item)
    return item if _WORD.fullmatch(item) else json.dumps(item)


def _fold(tokens: Sequence[str]) -> str:
    """Interval dynamic programming: best[i, j] is the shortest text for tokens[i:j]."""
    count = len(tokens)
    if not count:
        return ""
    best: dict[tuple[int, int], str] = {(i, i + 1): token for i, token in enumerate(tokens)}
    for length in range(2, count + 1):
        for i in range(count - length + 1):
            j = i + length
            split = min(range(i + 1, j), key=lambda k: len(best[i, k]) + len(best[k, j]))
            text = f"{best[i, split]}, {best[split, j]}"
            for period in range(2, length // 2 + 1):
                if length % period == 0 and tokens[i : j - period] == tokens[i + period : j]:
                    folded = f"({best[i, i + period]})*{length // period}"
                    if len(folded) < len(text):
                        text = folded
                    break
            best[i, j] = text
    return best[0, count]


def _parse_sequence(text: str, at: int) -> tuple[list[RunItem], int]:
    items: list[RunItem] = []
    while True:
        found, at = _parse_item(text, _skip(text, at))
        items += found
        if len(items) > _EXPANSION_LIMIT:
            raise ValueError(f"{text!r} expands to more than {_EXPANSION_LIMIT} items")
        at = _skip(text, at)
        if not text.startswith(",", at):
            return items, at
        at += 1


def _parse_item(text: str, at: int) -> tuple[list[RunItem], int]:
    items: list[RunItem]
    if text.startswith("(", at):
        items, at = _parse_sequence(text, at + 1)
        if not text.startswith(")", at):
            raise ValueError(f"missing ) at column {at + 1} of {text!r}")
        at += 1
    elif text.startswith('"', at):
        value, at = json.JSONDecoder().raw_decode(text, at)
        items = [value]
    elif number := _INT.match(text, at):
        items, at = [int(number.group())], number.end()
    elif word := _WORD.match(text, at):
        items, at = [word.group()], word.end()
    else:
        raise ValueError(f"expected a word, a number or ( at column {at + 1} of {text!r}")
    if text.startswith("*", at):
        times = _NATURAL.match(text, at + 1)
        if not times:
            raise ValueError(f"expected a count at column {at + 2} of {text!r}")
        if len(items) * int(times.group()) > _EXPANSION_LIMIT:
            raise ValueError(f"{text!r} expands to more than {_EXPANSION_LIMIT} items")
        return items * int(times.group()), times.end()
    return items, at


def _skip(text: str, at: int) -> int:
    while text.startswith(" ", at):
        at += 1
    return at


def encode_ranges(numbers: Sequence[int]) -> str:
    """``numbers`` (not negative, in any order) as ranges."""
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in numbers):
        raise ValueError("a range list holds integers that are not negative")
    parts: list[str] = []
    at = 0
    while at < len(numbers):
        end = at + 1
        if end < len(numbers):
            step = numbers[end] - numbers[at]
            while step > 0 and end < len(numbers) and numbers[end] - numbers[end - 1] == step:
                end += 1
        if end - at >= 3:
            suffix = "" if step == 1 else f":{step}"
            parts.append(f"{numbers[at]}-{numbers[end - 1]}{suffix}")
            at = end
        else:
            parts.append(str(numbers[at]))
            at += 1
    return ", ".join(parts)


def decode_ranges(pattern: str) -> list[int]:
    """The integers that a range pattern stands for."""
    numbers: list[int] = []
    for part in (p.strip() for p in pattern.split(",")) if pattern.strip() else ():
        if _NATURAL.fullmatch(part):
            numbers.append(int(part))
        elif span := _STEPPED.fullmatch(part):
            first, last, step = int(span[1]), int(span[2]), int(span[3] or 1)
            if last < first or (last - first) // step >= _EXPANSION_LIMIT:
                raise ValueError(f"{part!r} in {pattern!r} is not a usable range")
            numbers += range(first, last + 1, step)
        else:
            raise ValueError(
                f"{part!r} in {pattern!r} is neither a number nor a range a-b or a-b:s"
            )
    return numbers
