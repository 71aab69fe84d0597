"""Turn any value that SGLang keeps in an argument into JSON, without losing what it was."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import re
from collections.abc import Iterable
from typing import Any

MAX_TEXT = 4_000
MAX_ITEMS = 20_000
MAX_DEPTH = 6
MAX_BITS = 4_096  # Python refuses to print much longer integers
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def encode(value: Any, depth: int = 0) -> Any:
    """JSON form of ``value``; what JSON cannot hold becomes ``{"$type": ..., "$repr": ...}``.

    Enumerations are given by their value, records (dataclasses, msgspec structs) by their fields.
    Text is cut at ``MAX_TEXT`` characters and a collection at ``MAX_ITEMS``, so that no launch can
    flood the channel.
    """
    if isinstance(
        value, enum.Enum
    ):  # first: a str or int enumeration is an instance of its base too
        return encode(value.value, depth)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if value.bit_length() <= MAX_BITS else _opaque(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else _opaque(value)
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…"
    if depth >= MAX_DEPTH:
        return _opaque(value)
    if isinstance(value, (list, tuple)):
        return [encode(item, depth + 1) for item in _some(value)]
    if isinstance(value, (set, frozenset)):
        return sorted((encode(item, depth + 1) for item in _some(value)), key=repr)
    if isinstance(value, dict):
        return {_key(key): encode(item, depth + 1) for key, item in _some(value.items())}
    names = record_field_names(type(value))
    if names and not isinstance(value, type):
        return {name: encode(_field(value, name), depth + 1) for name in names}
    return _opaque(value)


def record_field_names(cls: type) -> list[str]:
    """Field names of a dataclass or msgspec struct class, in order; empty for any other class."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return list(getattr(cls, "__struct_fields__", ()))


def _some(values: Iterable[Any]) -> Iterable[Any]:
    return itertools.islice(values, MAX_ITEMS)


def _field(record: Any, name: str) -> Any:
    try:
        return getattr(record, name, None)
    except Exception:  # a property may do anything
        return None


def _key(key: Any) -> str:
    key = key.value if isinstance(key, enum.Enum) else key
    return key[:MAX_TEXT] if isinstance(key, str) else _text(key)


def _opaque(value: Any) -> dict[str, str]:
    return {"$type": type(value).__qualname__, "$repr": _text(value)}


def _text(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # a foreign __repr__ may do anything
        return f"<repr failed: {type(error).__name__}>"
    # Where an object lies in memory is another place each time, and no part of a decision.
    return _ADDRESS.sub("", text[:MAX_TEXT])
