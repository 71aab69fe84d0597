"""A short, exact, readable form for the repeating lists inside model configurations.

A checkpoint's ``config.json`` spells out one word per layer and one name per quantized module:
hundreds of lines that say "three linear layers, then a full one, sixteen times". ``data/models/``
keeps such lists as one line, so that a person can read and review them, and this module turns them
back into the very same lists. There are four forms, and :class:`CompactPaths` says which value is in
which (TOML has no null either, so null keys are listed there too):

runs
    ``"(linear_attention*3, full_attention)*16"``: words or integers, repeated and nested.
ranges
    ``"1-3, 5-7, 9, 12-20:4"``: integers in order; ``a-b:s`` counts from a to b in steps of s.
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

from pydantic import BaseModel, ConfigDict

RunItem = str | int
NamePattern = str | list[str]

_SHORT = 8  # lists with fewer items than this are left as they are
_FOLD_LIMIT = 160  # folding is cubic in the number of runs; longer lists are only run-length coded
_EXPANSION_LIMIT = 1_000_000  # a pattern that expands to more is a mistake

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_INT = re.compile(r"-?(?:0|[1-9][0-9]*)(?![0-9A-Za-z_.])")
_NATURAL = re.compile(r"0|[1-9][0-9]*")
_SPAN = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)")
_STEPPED = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)(?::([1-9][0-9]*))?")


class CompactPaths(BaseModel):
    """Where a document uses a compact form: dotted paths from the document's root."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nulls: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    name_maps: tuple[str, ...] = ()


# --- runs ---------------------------------------------------------------------------------------


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


# --- ranges -------------------------------------------------------------------------------------


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


# --- names --------------------------------------------------------------------------------------


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


# --- whole documents ----------------------------------------------------------------------------


def pack(document: dict[str, Any]) -> tuple[dict[str, Any], CompactPaths]:
    """``document`` (JSON values) without nulls and with its long repeating lists made compact."""
    paths: dict[str, list[str]] = {form: [] for form in CompactPaths.model_fields}

    def visit(value: Any, path: str) -> Any:
        if isinstance(value, dict):
            if _is_name_map(value):
                paths["name_maps"].append(path)
                return encode_name_map(value)
            kept = {}
            for key, inner in value.items():
                if not key or "." in key:
                    raise ValueError(f"cannot address key {key!r} of {path!r} by a dotted path")
                inner_path = f"{path}.{key}" if path else key
                if inner is None:
                    paths["nulls"].append(inner_path)
                else:
                    kept[key] = visit(inner, inner_path)
            return kept
        if isinstance(value, list):
            if _holds_null(value):
                raise ValueError(f"the list {path!r} holds a null, which TOML cannot express")
            form, short = _shortest(value)
            if form:
                paths[form].append(path)
            return short
        return value

    packed = visit(document, "")
    return packed, CompactPaths(**{form: tuple(found) for form, found in paths.items()})


def unpack(document: dict[str, Any], paths: CompactPaths) -> dict[str, Any]:
    """The document that :func:`pack` packed, as a new object."""
    whole = copy.deepcopy(document)
    decoders = {
        "runs": decode_runs,
        "ranges": decode_ranges,
        "names": decode_names,
        "name_maps": decode_name_map,
    }
    for form, decode in decoders.items():
        for path in getattr(paths, form):
            parent, key = _locate(whole, path)
            if key not in parent:
                raise ValueError(f"{form} names {path!r}, which is not there")
            try:
                parent[key] = decode(parent[key])  # type: ignore[operator]
            except (TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"{path!r} is not in the form that {form} needs") from error
    for path in paths.nulls:
        parent, key = _locate(whole, path)
        if key in parent:
            raise ValueError(f"nulls names {path!r}, which has a value")
        parent[key] = None
    return whole


def _locate(document: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    *steps, key = path.split(".")
    here: Any = document
    for step in steps:
        here = here.get(step) if isinstance(here, dict) else None
    if not isinstance(here, dict):
        raise ValueError(f"there is no table that holds {path!r}")
    return here, key


def _is_name_map(value: dict[str, Any]) -> bool:
    return (
        len(value) >= _SHORT
        and all("." in key or key == "lm_head" for key in value)
        and not _holds_null(list(value.values()))
    )


def _holds_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_null, value.values()))
    if isinstance(value, list):
        return any(map(_holds_null, value))
    return value is None


def _shortest(items: list[Any]) -> tuple[str | None, Any]:
    if len(items) < _SHORT:
        return None, items
    candidates: list[tuple[str | None, Any]] = []
    if all(type(i) is int for i in items) or all(isinstance(i, str) for i in items):
        candidates.append(("runs", encode_runs(items)))
    if all(type(i) is int and i >= 0 for i in items):
        candidates.append(("ranges", encode_ranges(items)))
    if all(isinstance(i, str) for i in items):
        candidates.append(("names", encode_names(items)))
    if not candidates:
        return None, items
    form, short = min(candidates, key=lambda c: len(json.dumps(c[1])))
    worth_it = len(json.dumps(short)) < 0.7 * len(json.dumps(items))
    return (form, short) if worth_it else (None, items)
