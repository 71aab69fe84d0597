"""Many names as a few patterns, and mappings from many names to few values.

names
    A list of patterns such as ``"model.layers.{0-2,4}.{q,k}_proj"``, expanded as a shell expands
    braces, the leftmost slowest. A nested list of patterns is expanded as a whole and then sorted as
    text. ``{{`` and ``}}`` stand for literal braces.
name maps
    ``[{names = [...], value = ...}]``: a mapping from each of the names to an equal value.

Every encoder either returns something its decoder restores exactly, or raises ``ValueError``.
"""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

NamePattern = str | list[str]

_EXPANSION_LIMIT = 1_000_000  # a pattern that expands to more is a mistake
_NATURAL = re.compile(r"0|[1-9][0-9]*")
_SPAN = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)")


def encode_names(names: Sequence[str]) -> list[NamePattern]:
    """``names`` as brace patterns, in their order, repeats included."""
    patterns: list[NamePattern] = []
    at = 0
    while at < len(names):
        end = at + 1
        while end < len(names) and names[end - 1] < names[end]:
            end += 1
        stretch = names[at:end]
        listed = _encode_listed(stretch)
        block = _encode_block(stretch)
        if len(block) < len(listed):
            patterns.append(block)
            at = end
        else:
            taken = _same_but_one(names, at)[0]
            patterns.append(_encode_listed(names[at : at + taken])[0])
            at += taken
    return patterns


def decode_names(patterns: Sequence[NamePattern]) -> list[str]:
    """The names that a list of patterns stands for."""
    names: list[str] = []
    for pattern in patterns:
        if isinstance(pattern, str):
            names += _expand(pattern)
        else:
            names += sorted(name for each in pattern for name in _expand(each))
    return names


def encode_name_map(mapping: dict[str, Any]) -> list[dict[str, Any]]:
    """``mapping`` as groups of names with equal values (the order of its keys is not kept)."""
    groups: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for name, value in mapping.items():
        key = json.dumps(value, sort_keys=True)
        groups.setdefault(key, []).append(name)
        values[key] = value
    return [
        {"names": encode_names(sorted(names)), "value": values[key]}
        for key, names in groups.items()
    ]


def decode_name_map(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mapping that :func:`encode_name_map` encoded; each name has its own copy of the value."""
    return {
        name: copy.deepcopy(group["value"])
        for group in groups
        for name in decode_names(group["names"])
    }


def _same_but_one(names: Sequence[str], at: int) -> tuple[int, int]:
    """How many names from ``at`` on differ only in one dotted part, and which part that is."""
    first = names[at].split(".")
    taken, part = 1, -1
    for name in names[at + 1 :]:
        parts = name.split(".")
        if len(parts) != len(first):
            break
        differing = [i for i, (a, b) in enumerate(zip(first, parts, strict=True)) if a != b]
        if len(differing) != 1 or part not in (-1, differing[0]):
            break
        if not _plain(parts[differing[0]]) or not _plain(first[differing[0]]):
            break
        part = differing[0]
        taken += 1
    return taken, part


def _encode_listed(names: Sequence[str]) -> list[str]:
    patterns: list[str] = []
    at = 0
    while at < len(names):
        taken, part = _same_but_one(names, at)
        if taken == 1:
            patterns.append(_escape(names[at]))
        else:
            parts = [_escape(p) for p in names[at].split(".")]
            parts[part] = _braces([n.split(".")[part] for n in names[at : at + taken]])
            patterns.append(".".join(parts))
        at += taken
    return patterns


_Parts = tuple[str | None, ...]  # a name's dotted parts; None stands for its first number


def _encode_block(names: Sequence[str]) -> list[str]:
    """Patterns whose expansion, sorted as text, is ``names`` (strictly ascending)."""
    numbers: dict[_Parts, list[int]] = {}
    patterns: list[str] = []
    for name in names:
        parts = name.split(".")
        spot = next((i for i, p in enumerate(parts) if _NATURAL.fullmatch(p)), None)
        if spot is None:
            patterns.append(_escape(name))
        else:
            frame = (*parts[:spot], None, *parts[spot + 1 :])
            numbers.setdefault(frame, []).append(int(parts[spot]))
    # Names alike in all but the last part, with the same numbers, share a pattern.
    grouped: dict[tuple[_Parts, tuple[int, ...]], list[str]] = {}
    for frame, found in numbers.items():
        layers, last = tuple(sorted(found)), frame[-1]
        if last is not None and _plain(last):
            grouped.setdefault((frame[:-1], layers), []).append(last)
        else:
            patterns.append(_pattern(frame, layers))
    for (frame, layers), tails in grouped.items():
        patterns.append(f"{_pattern(frame, layers)}.{_braces(tails)}")
    return patterns


def _pattern(frame: _Parts, layers: tuple[int, ...]) -> str:
    braces = _braces([str(n) for n in layers])
    return ".".join(braces if part is None else _escape(part) for part in frame)


def _plain(text: str) -> bool:
    """Whether ``text`` can stand between braces as one alternative."""
    return not set(text) & set("{},") and not _SPAN.fullmatch(text)


def _braces(choices: Sequence[str]) -> str:
    if len(choices) == 1:
        return _escape(choices[0])
    parts: list[str] = []
    at = 0
    while at < len(choices):
        end = at + 1
        while (
            end < len(choices)
            and _NATURAL.fullmatch(choices[end - 1])
            and _NATURAL.fullmatch(choices[end])
            and int(choices[end]) == int(choices[end - 1]) + 1
        ):
            end += 1
        parts.append(choices[at] if end - at == 1 else f"{choices[at]}-{choices[end - 1]}")
        at = end
    return "{" + ",".join(parts) + "}"


def _escape(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _expand(pattern: str) -> Iterator[str]:
    pieces: list[list[str]] = []
    at, literal, size = 0, "", 1
    while at < len(pattern):
        if pattern.startswith(("{{", "}}"), at):
            literal += pattern[at]
            at += 2
        elif pattern[at] == "{":
            end = pattern.find("}", at)
            if end < 0:
                raise ValueError(f"missing }} in {pattern!r}")
            choices = _choices(pattern[at + 1 : end])
            size *= len(choices)
            pieces += [[literal], choices]
            literal, at = "", end + 1
        elif pattern[at] == "}":
            raise ValueError(f"unexpected }} at column {at + 1} of {pattern!r}")
        else:
            literal += pattern[at]
            at += 1
    if size > _EXPANSION_LIMIT:
        raise ValueError(f"{pattern!r} expands to more than {_EXPANSION_LIMIT} names")
    pieces.append([literal])
    return ("".join(combination) for combination in itertools.product(*pieces))


def _choices(inside: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        span = _SPAN.fullmatch(part)
        if span and int(span[1]) <= int(span[2]):
            if int(span[2]) - int(span[1]) >= _EXPANSION_LIMIT:
                raise ValueError(f"range {part!r} is too long")
            found += map(str, range(int(span[1]), int(span[2]) + 1))
        else:
            found.append(part)
    return found
