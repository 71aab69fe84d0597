"""Brace expansion: ``{a,b}`` and ``{1..3}`` as bash writes them out."""

from __future__ import annotations

import re

from casebook.launch.bash_tree import Unit

_SEQUENCE = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")

_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")

MAX_BRACES = 10_000


def braces(word: list[Unit]) -> list[list[Unit]]:
    """``{a,b}`` and ``{1..3}``, in quotes left alone."""
    if not any(u.char == "{" and not u.quoted and u.expansion is None for u in word):
        return [word]
    position = 0
    while position < len(word):
        if _is(word[position], "{"):
            close = _matching(word, position)
            if close is not None:
                options = _alternatives(word, position, close)
                if options is not None:
                    before, after = word[:position], braces(word[close + 1 :])
                    found = [
                        [*before, *option, *rest]
                        for inner in options
                        for option in braces(inner)
                        for rest in after
                    ]
                    return found[:MAX_BRACES]
        position += 1
    return [word]


def _is(unit: Unit, char: str) -> bool:
    return unit.char == char and not unit.quoted and unit.expansion is None


def _matching(word: list[Unit], position: int) -> int | None:
    depth = 0
    for number in range(position, len(word)):
        if _is(word[number], "{"):
            depth += 1
        elif _is(word[number], "}"):
            depth -= 1
            if depth == 0:
                return number
    return None


def _alternatives(word: list[Unit], first: int, last: int) -> list[list[Unit]] | None:
    inner = word[first + 1 : last]
    depth = 0
    parts: list[list[Unit]] = []
    current: list[Unit] = []
    for unit in inner:
        if _is(unit, "{"):
            depth += 1
        elif _is(unit, "}"):
            depth -= 1
        if depth == 0 and _is(unit, ","):
            parts.append(current)
            current = []
        else:
            current.append(unit)
    if parts:
        return [*parts, current]
    if any(u.quoted or u.expansion is not None for u in inner):
        return None
    body, at = "".join(u.char for u in inner), word[first].at
    if match := _SEQUENCE.fullmatch(body):
        return [[Unit(c, at, quoted=False) for c in n] for n in _numbers(match)]
    if match := _LETTERS.fullmatch(body):
        low, high = ord(match[1]), ord(match[2])
        step = abs(int(match[3] or 1)) or 1
        codes = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
        return [[Unit(chr(c), at, quoted=False)] for c in codes]
    return None


def _numbers(match: re.Match[str]) -> list[str]:
    low, high = int(match[1]), int(match[2])
    step = abs(int(match[3] or 1)) or 1
    values = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
    padded = any(re.match(r"-?0\d", match[i]) for i in (1, 2))
    width = max(len(match[1]), len(match[2])) if padded else 0
    return [f"{v:0{width}d}" for v in values[:MAX_BRACES]]
