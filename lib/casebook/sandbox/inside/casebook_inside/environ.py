"""Record which environment variables SGLang reads and sets, and where."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

# Told of each access: (operation, name, value before, value after).
Listener = Callable[[str, str, Any, Any], None]

# argparse asks for the terminal's size once per option; nobody's configuration depends on it.
_IGNORED = frozenset({"COLUMNS", "LINES"})
_listener: Listener | None = None


class RecordingEnviron(os._Environ):  # type: ignore[type-arg]
    """``os.environ`` that tells the listener of each access; behaves as before otherwise."""

    def __getitem__(self, key: Any) -> Any:
        try:
            value = super().__getitem__(key)
        except KeyError:
            _tell("read", key, None, None)
            raise
        _tell("read", key, value, value)
        return value

    # ``Mapping.__contains__`` asks ``__getitem__``, which tells: the parent's parts are called by
    # name here, so that one access is one message and a write is not also a read.
    def __contains__(self, key: Any) -> bool:
        value = self._value(key)
        _tell("read", key, value, value)
        return value is not None

    def __setitem__(self, key: Any, value: Any) -> None:
        old = self._value(key)
        super().__setitem__(key, value)
        _tell("set", key, old, value)

    def __delitem__(self, key: Any) -> None:
        old = self._value(key)
        super().__delitem__(key)
        _tell("unset", key, old, None)

    def _value(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)
        except KeyError:
            return None


def _tell(operation: str, key: Any, old: Any, new: Any) -> None:
    global _listener
    if _listener is None or key in _IGNORED:
        return
    listener, _listener = _listener, None  # the listener's own look-ups are not SGLang's
    try:
        listener(operation, str(key), old, new)
    finally:
        _listener = listener


def listen(listener: Listener | None) -> None:
    """Install ``listener`` (or none); the class swap happens once and keeps every reference valid."""
    global _listener
    if not isinstance(os.environ, RecordingEnviron):
        os.environ.__class__ = RecordingEnviron  # type: ignore[assignment]
    _listener = listener
