"""Arguments whose value is an object of SGLang's own, edited part by part.

``self.cuda_graph_config.decode.backend = ...`` writes to no argument. Once such an object has become an
argument's value, writes to it and to the objects in it are told as changes of that argument.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 3

_watched: Parts | None = None


class Parts:
    """The objects that are arguments' values in one launch; ``tell(argument, value, frame)`` hears of edits."""

    def __init__(self, tell: Callable[[str, Any, types.FrameType], None]) -> None:
        self._tell = tell
        # By identity; the object is kept alive, so that its identity stays its own.
        self._known: dict[int, tuple[Any, str, Any]] = {}

    def follow(self, argument: str, value: Any) -> None:
        """Hear of edits of ``value``, which became ``argument``'s."""
        self._follow(argument, value, value, MAX_DEPTH)

    def edited(self, part: Any, frame: types.FrameType) -> None:
        """``part`` was written to; tell it if it is a part of an argument's value."""
        known, argument, whole = self._known.get(id(part), (None, "", None))
        if known is part:
            self.follow(argument, whole)  # the part may be new
            self._tell(argument, whole, frame)

    def _follow(self, argument: str, part: Any, whole: Any, depth: int) -> None:
        if not depth or not _is_editable(part):
            return
        self._known[id(part)] = (part, argument, whole)
        _hook(type(part))
        for field in dataclasses.fields(part):
            self._follow(argument, getattr(part, field.name, None), whole, depth - 1)


def watch(parts: Parts | None) -> None:
    """Make ``parts`` the one that hears of edits (None: nobody)."""
    global _watched
    _watched = parts


def _is_editable(value: Any) -> bool:
    cls = type(value)
    ours = cls.__module__.partition(".")[0] == "sglang" and dataclasses.is_dataclass(cls)
    return ours and not cls.__dataclass_params__.frozen  # type: ignore[attr-defined]


def _hook(cls: type) -> None:
    if "_casebook_parts" in vars(cls):
        return
    original: Any = cls.__setattr__

    def recorded(self: Any, name: str, value: Any) -> None:
        original(self, name, value)
        if _watched is not None:
            _watched.edited(self, sys._getframe(1))

    cls.__setattr__ = recorded  # type: ignore[method-assign,assignment]
    cls._casebook_parts = True  # type: ignore[attr-defined]
