"""What argparse made of the words: which argument was typed, how it was spelled, what was refused.

argparse keeps no record of which values were typed. It does set a value from an action's
``__call__`` only when the words named it, so a namespace that looks at who sets it can tell.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shutil
import sys
from typing import Any

from casebook_inside.encode import encode

FEW = 12  # flags that share a word which still tells what they are about


class ParsingNamespace(argparse.Namespace):
    """A namespace that notes, per destination, the option that set it."""

    __slots__ = ("_casebook_log",)  # not among ``vars()``, which SGLang may read or copy

    def __init__(self, log: CommandLine) -> None:
        self._casebook_log = log

    def __setattr__(self, name: str, value: Any) -> None:
        frame = sys._getframe(1)
        if frame.f_code.co_name == "__call__" and name != "_casebook_log":
            action, option = frame.f_locals.get("self"), frame.f_locals.get("option_string")
            if isinstance(action, argparse.Action):
                self._casebook_log.typed_by(name, action, option, value)
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return super().__repr__().replace(type(self).__name__, "Namespace", 1)


class RecordingNamespace(ParsingNamespace):
    """What a ``ParsingNamespace`` becomes after the parse: it notes renames of destinations, too."""

    __slots__ = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "_casebook_log":
            log = self._casebook_log
            in_reader = sys._getframe(1).f_code.co_name == "from_cli_args"
            if in_reader and log.last_read not in (None, name):
                # `args.tp_size = args.tensor_parallel_size`: a field under another name than its flag.
                log.renamed[str(log.last_read)] = name
            log.last_read = None
        object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            self._casebook_log.last_read = name
        return object.__getattribute__(self, name)


class CommandLine:
    """The parse of one launch: typed options, destinations, the parser's refusal."""

    def __init__(self) -> None:
        self.parser: argparse.ArgumentParser | None = None
        self.words: list[str] = []
        self.typed: list[dict[str, Any]] = []
        self.renamed: dict[str, str] = {}
        self.last_read: str | None = None
        self.refusal: str | None = None
        self.namespace: dict[str, Any] = {}

    def __deepcopy__(self, _memo: Any) -> CommandLine:
        return self  # a copied namespace goes on telling the same log

    def typed_by(self, dest: str, action: argparse.Action, option: str | None, value: Any) -> None:
        self.typed.append(
            {
                "dest": dest,
                "option": option,
                "options": list(action.option_strings),
                "value": encode(value),
                "default": encode(action.default),
                # SGLang's own actions for flags on their way out, and the flag they point to.
                "deprecated": type(action).__name__.startswith("Deprecated"),
                "new_flag": getattr(action, "new_flag", None),
            }
        )

    def nearest_flags(self) -> dict[str, list[str]]:
        """For each flag the parser does not know: the flags it does know that look like it."""
        if self.parser is None:
            return {}
        known = [option for option in self.parser._option_string_actions if option.startswith("--")]
        typed = [w.partition("=")[0] for w in self.words if w.startswith("--") and len(w) > 2]
        # argparse completes an abbreviation, unless the parser forbids it.
        known_starts = tuple(known) if self.parser.allow_abbrev else ()
        unknown = [
            flag
            for flag in typed
            if flag not in known and not any(option.startswith(flag) for option in known_starts)
        ]
        return {flag: _nearest(flag.replace("_", "-"), known) for flag in dict.fromkeys(unknown)}

    def as_record(self) -> dict[str, Any]:
        flags: dict[str, list[str]] = {}
        for action in self.parser._actions if self.parser else ():
            flags.setdefault(action.dest, []).extend(action.option_strings)
        return {
            "words": self.words,
            "typed": self.typed,
            "renamed": self.renamed,
            "refusal": self.refusal,
            "nearest_flags": self.nearest_flags() if self.refusal else {},
            "flags": flags,
        }


def _nearest(flag: str, known: list[str]) -> list[str]:
    """The known flags that look like ``flag``, after the one that is about the same thing.

    ``--ep-size`` shares the word `ep`, which few flags have, with ``--enable-ep-moe``; letter by letter
    others are nearer.
    """
    words = set(flag[2:].split("-"))
    held: dict[str, int] = {}
    for option in known:
        for word in set(option[2:].split("-")):
            held[word] = held.get(word, 0) + 1

    def weight(option: str) -> float:
        own = set(option[2:].split("-"))
        return sum(1 / held[word] for word in words & own if held[word] <= FEW)

    close = difflib.get_close_matches(flag, known, n=3, cutoff=0.6)
    # Of two equal ones the shorter, but a name (--ep-size) rather than its abbreviation (--ep).
    best = max(known, key=lambda o: (weight(o), "-" in o[2:], -len(o)), default="")
    return close if not best or not weight(best) or best in close else [best, *close[:2]]


_current: CommandLine | None = None


def watch(log: CommandLine | None) -> None:
    """Make ``log`` the one that the next parse is written to."""
    global _current
    _current = log


def hook_argparse() -> None:
    """Give the largest parser of the process (SGLang's) a recording namespace, once per launch."""
    parse_args, error = argparse.ArgumentParser.parse_args, argparse.ArgumentParser.error

    def recorded_parse(self: Any, args: Any = None, namespace: Any = None) -> Any:
        log = _current
        if log is None or namespace is not None or not _is_server_parser(self):
            return parse_args(self, args, namespace)
        log.parser, log.words = (
            self,
            [str(word) for word in (sys.argv[1:] if args is None else args)],
        )
        log.typed.clear()
        namespace = ParsingNamespace(log)
        # argparse would set each default by itself, and be watched while it does.
        vars(namespace).update(_defaults(self))
        found = parse_args(self, args, namespace)
        if type(found) is ParsingNamespace:
            found.__class__ = RecordingNamespace  # type: ignore[assignment]
        return found

    def recorded_error(self: Any, message: str) -> Any:
        if _current is not None and _is_server_parser(self):
            _current.parser, _current.refusal = self, message
        return error(self, message)

    # Asked once per option, to fold a help text that nobody reads: 4 ms of a launch.
    shutil.get_terminal_size = lambda *_args, **_kwargs: os.terminal_size((100, 40))
    argparse.ArgumentParser.parse_args = recorded_parse  # type: ignore[method-assign,assignment]
    argparse.ArgumentParser.error = recorded_error  # type: ignore[method-assign,assignment]


def _defaults(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """What a namespace holds before any word is read; of two actions the first one's default."""
    found: dict[str, Any] = {}
    for action in parser._actions:
        if argparse.SUPPRESS not in (action.dest, action.default):
            found.setdefault(action.dest, action.default)
    return found


def _is_server_parser(parser: argparse.ArgumentParser) -> bool:
    return "--model-path" in parser._option_string_actions
