"""The recorder: one ordered stream of what SGLang does to its arguments.

SGLang has had two styles, and some releases mix them:

* *assignment*: ``ServerArgs`` is a dataclass that handlers assign to. A hook on ``__setattr__`` sees
  each write.
* *declaration*: handlers append ``(source, {field: value})`` to ``_resolved_overrides``. The list is
  replaced by one that tells of each append; what a provider function returned is located by the
  line of its ``return``, since the append itself stands in a helper.

Events carry the stack of SGLang frames (innermost first), so that the reader can name the deciding
line. Names of helpers that only pass a decision on are the reader's business, not the recorder's.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import types
import warnings
from collections.abc import Iterable
from typing import Any

from casebook_inside import environ, parts
from casebook_inside.encode import encode, record_field_names

MAX_FRAMES = 12
MAX_EVENTS = 50_000
MAX_MESSAGE = 4000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # of a terminal; no part of what is said
_WHOLESALE_READS = {"copy", "__iter__", "items", "values", "keys", "__repr__", "__or__", "__ror__"}

_active: Recorder | None = None


class Recorder:
    """Collects the events of one launch. ``root`` is the folder of the ``sglang`` package.

    With ``only``, names of arguments, it follows these and keeps no events: the end and not the way.
    """

    def __init__(self, root: str, only: Iterable[str] | None = None) -> None:
        self.only = None if only is None else frozenset(only)
        self.root = root.rstrip("/") + "/"
        self.events: list[dict[str, Any]] = []
        self.initial: dict[str, Any] = {}
        self.current: dict[str, Any] = {}
        self.fields: list[str] = []
        self.main: Any = None
        self.phase = "parse"
        self._declared: list[Any] = []  # entries seen, kept alive so that ids stay unique
        self._decided: dict[str, list[Any]] = {}
        self._relative: dict[str, str | None] = {}
        self.parts = parts.Parts(functools.partial(self._change, "assign"))

    # -- the stream -------------------------------------------------------------------------

    def emit(self, kind: str, frame: types.FrameType | None, **data: Any) -> None:
        if self.only is not None or len(self.events) >= MAX_EVENTS:
            return
        stack = self.stack(frame)
        if kind in ("env", "log") and any(_is_once_per_process(frame) for frame in stack):
            return  # whether that happens now, or happened before the fork, is chance
        self.events.append({"kind": kind, "phase": self.phase, "stack": stack, **data})

    def stack(self, frame: types.FrameType | None) -> list[list[Any]]:
        """SGLang's frames from ``frame`` outwards: ``[file, line, function, frame identity]``."""
        found: list[list[Any]] = []
        while frame is not None and len(found) < MAX_FRAMES:
            code = frame.f_code
            relative = self.relative(code.co_filename)
            if relative is not None:
                found.append([relative, frame.f_lineno, code.co_name, id(frame)])
            frame = frame.f_back
        return found

    def relative(self, filename: str) -> str | None:
        """Path below the ``sglang`` package, or None for a file of anyone else."""
        if filename not in self._relative:
            inside = filename.startswith(self.root)
            self._relative[filename] = filename[len(self.root) :] if inside else None
        return self._relative[filename]

    # -- arguments --------------------------------------------------------------------------

    def assigned(self, owner: Any, name: str, value: Any, frame: types.FrameType) -> Any:
        """Note a write to ``owner.name``; returns the value to store in its place."""
        if self.main is None:
            self.main = owner
            self.fields = record_field_names(type(owner))
        if owner is not self.main or not self._follows(name):
            return value
        if _is_generated_init(frame):
            self.initial[name] = self.current[name] = encode(value)
            return value
        if name == "_resolved_overrides" and isinstance(value, list):
            tracked = DeclarationList(value)
            self.declared_all(tracked, frame)
            return tracked
        if name in self.fields:
            self._change("assign", name, value, frame)
        return value

    def _follows(self, name: str) -> bool:
        return self.only is None or name in self.only or name == "_resolved_overrides"

    def declared_all(self, entries: Iterable[Any], frame: types.FrameType) -> None:
        for entry in entries:
            self.declared(entry, frame)

    def declared(self, entry: Any, frame: types.FrameType) -> None:
        """Note one ``(source, {field: value})`` unless it was noted before."""
        if any(entry is seen for seen in self._declared):
            return
        self._declared.append(entry)
        try:
            source, values = entry
            items = list(values.items())
        except (TypeError, ValueError, AttributeError):
            return  # not of the known shape: leave it to SGLang
        for name, value in items:
            if not self._follows(name):
                continue
            self._change(
                "declare",
                name,
                value,
                frame,
                source=str(source),
                decided=self._decided.get(str(source)),
            )

    def decided(self, source: str, frames: list[list[Any]]) -> None:
        """Remember where provider ``source`` returned its declaration."""
        self._decided[source] = frames

    def _change(
        self, kind: str, name: str, value: Any, frame: types.FrameType, **data: Any
    ) -> None:
        if name not in self.current and self.main is not None:
            self.current[name] = encode(getattr(self.main, name, None))
        new = encode(value)
        old = self.current.get(name)
        self.current[name] = new
        self.parts.follow(name, value)
        self.emit(kind, frame, field=name, old=old, new=new, **data)

    # -- surroundings -----------------------------------------------------------------------

    def environment(self, operation: str, name: str, old: Any, new: Any) -> None:
        # 0: here, 1: environ._tell, 2: RecordingEnviron method, 3: its caller.
        frame: types.FrameType | None = sys._getframe(3)
        while frame is not None and self.relative(frame.f_code.co_filename) is None:
            module = frame.f_globals.get("__name__", "")
            if module not in ("os", "collections.abc", "_collections_abc", environ.__name__):
                return  # somebody else's look-up, or SGLang's only at a distance
            if frame.f_code.co_name in _WHOLESALE_READS:
                return
            frame = frame.f_back
        if frame is not None:
            self.emit("env", frame, operation=operation, name=name, old=old, new=new)

    def logged(self, record: logging.LogRecord, frame: types.FrameType) -> None:
        if self.only is not None:
            return
        try:
            message = record.getMessage()
        except Exception:  # a bad format string is SGLang's to report
            message = str(record.msg)
        self.emit("log", frame, level=record.levelname, logger=record.name, message=_plain(message))

    def warned(self, message: str, category: str, frame: types.FrameType) -> None:
        if self.stack(frame):
            logger = f"warnings.{category}"
            self.emit("log", frame, level="WARNING", logger=logger, message=_plain(message))


class DeclarationList(list):  # type: ignore[type-arg]
    """SGLang's list of declarations, telling the active recorder of each new entry."""

    def append(self, entry: Any) -> None:
        super().append(entry)
        if _active is not None:
            _active.declared(entry, sys._getframe(1))

    def extend(self, entries: Iterable[Any]) -> None:
        entries = list(entries)
        super().extend(entries)
        if _active is not None:
            _active.declared_all(entries, sys._getframe(1))

    def __iadd__(self, entries: Iterable[Any]) -> DeclarationList:  # type: ignore[misc,override]
        self.extend(entries)
        return self

    def __reduce__(self) -> Any:  # a copy or a pickle is a plain list
        return (list, (list(self),))


def _plain(message: str) -> str:
    return _COLOUR.sub("", message)[:MAX_MESSAGE]


def _is_once_per_process(frame: list[Any]) -> bool:
    """Whether a frame imports a module, or makes a package's lazy attribute (``current_platform``)."""
    file, _, function, _ = frame
    return function == "<module>" or (function == "__getattr__" and file.endswith("__init__.py"))


def _is_generated_init(frame: types.FrameType) -> bool:
    return frame.f_code.co_name == "__init__" and frame.f_code.co_filename.startswith("<")


# -- hooks, installed once per process ------------------------------------------------------


def activate(recorder: Recorder | None) -> None:
    """Make ``recorder`` the one that the hooks tell (None: nobody)."""
    global _active
    _active = recorder
    whole = recorder is not None and recorder.only is None
    environ.listen(recorder.environment if recorder is not None and whole else None)
    parts.watch(recorder.parts if recorder else None)


def active() -> Recorder | None:
    """The recorder that the hooks tell."""
    return _active


def replay(events: list[dict[str, Any]]) -> None:
    """Tell the active recorder what another one was told, as if it happened now."""
    if _active is not None:
        _active.events += [{**event, "phase": _active.phase} for event in events]


def hook_arguments(cls: type) -> None:
    """See every attribute write to instances of ``cls`` (``ServerArgs``)."""
    original: Any = cls.__setattr__

    def recorded(self: Any, name: str, value: Any) -> None:
        recorder = _active
        if recorder is None:
            original(self, name, value)
            return
        frame = sys._getframe(1)
        if frame.f_code is recorded.__code__:
            frame = frame.f_back or frame
        if _refuses(original, self, name):
            original(self, name, value)  # let SGLang say so; nothing was written
            return
        original(self, name, recorder.assigned(self, name, value, frame))

    recorded._casebook_hook = True  # type: ignore[attr-defined]
    cls.__setattr__ = recorded  # type: ignore[method-assign,assignment]


def _refuses(original: Any, owner: Any, name: str) -> bool:
    """Whether SGLang's own setter (0.5.20 on: a sealed record) is about to refuse the write."""
    if original is object.__setattr__:
        return False
    sealed = getattr(owner, "_input_frozen", False) or getattr(owner, "_resolution_finished", False)
    return bool(sealed) and not name.startswith("_")


def hook_logging() -> None:
    """See each log record before handlers, which SGLang replaces with ``basicConfig(force=True)``."""
    original = logging.Logger.handle

    def handle(self: logging.Logger, record: logging.LogRecord) -> None:
        if _active is not None:
            _active.logged(record, sys._getframe(1))
        original(self, record)

    logging.Logger.handle = handle  # type: ignore[method-assign,assignment]

    show = warnings.showwarning

    def showwarning(message: Any, category: Any, *args: Any, **kwargs: Any) -> None:
        if _active is not None:
            _active.warned(str(message), category.__name__, sys._getframe(1))
        show(message, category, *args, **kwargs)

    warnings.showwarning = showwarning  # type: ignore[assignment]
