"""Turn any value that SGLang keeps in an argument into JSON, without losing what it was."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

MAX_TEXT = 4_000
MAX_DEPTH = 6


def encode(value: Any, depth: int = 0) -> Any:
    """JSON form of ``value``; what JSON cannot hold becomes ``{"$type": ..., "$repr": ...}``.

    Enumerations are given by their value, records (dataclasses, msgspec structs) by their fields.
    Text is cut at ``MAX_TEXT`` characters, so that no launch can flood the channel.
    """
    if value is None or isinstance(value, (bool, int)):
        # A str/int enum is an instance of its base: name it before the base swallows it.
        return encode(value.value, depth) if isinstance(value, enum.Enum) else value
    if isinstance(value, enum.Enum):
        return encode(value.value, depth)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else _opaque(value)
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…"
    if depth >= MAX_DEPTH:
        return _opaque(value)
    if isinstance(value, (list, tuple)):
        return [encode(item, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((encode(item, depth + 1) for item in value), key=repr)
    if isinstance(value, dict):
        return {str(key): encode(item, depth + 1) for key, item in value.items()}
    names = record_field_names(type(value))
    if names and not isinstance(value, type):
        return {name: encode(getattr(value, name, None), depth + 1) for name in names}
    return _opaque(value)


def record_field_names(cls: type) -> list[str]:
    """Field names of a dataclass or msgspec struct class, in order; empty for any other class."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    return list(getattr(cls, "__struct_fields__", ()))


def _opaque(value: Any) -> dict[str, str]:
    try:
        text = repr(value)
    except Exception as error:  # a foreign __repr__ may do anything
        text = f"<repr failed: {type(error).__name__}>"
    return {"$type": type(value).__qualname__, "$repr": text[:MAX_TEXT]}
