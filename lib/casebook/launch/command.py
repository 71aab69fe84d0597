"""From the words of a command to the SGLang entry point in it: assignments, wrappers, interpreter."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from casebook.errors import LaunchError

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*t?")
_SERVER_MODULES = frozenset({"sglang.launch_server", "sglang.srt.launch_server"})
_COMMAND_MODULES = frozenset({"sglang", "sglang.cli", "sglang.cli.main"})  # `-m sglang serve`
_PYTHON_VALUED = frozenset({"-X", "-W", "--check-hash-based-pycs"})
_MODULE_OPTION = re.compile(r"-[bBdEiIOPqRsSuvx]*m(.*)", re.DOTALL)


@dataclass(frozen=True)
class _Wrapper:
    """A program that starts another one: options with a value, and words before the command."""

    valued: frozenset[str] = frozenset()
    words: int = 0


def _wrapper(valued: str = "", words: int = 0) -> _Wrapper:
    return _Wrapper(frozenset(valued.split()), words)


_WRAPPERS = {
    "command": _wrapper(),
    "env": _wrapper("-u --unset -C --chdir -S --split-string"),
    "exec": _wrapper("-a"),
    "ionice": _wrapper("-c --class -n --classdata"),
    "nice": _wrapper("-n --adjustment"),
    "nohup": _wrapper(),
    "numactl": _wrapper(
        "-N --cpunodebind -m --membind -C --physcpubind -i --interleave -p --preferred -P"
    ),
    "setsid": _wrapper(),
    "stdbuf": _wrapper("-i --input -o --output -e --error"),
    "sudo": _wrapper("-u --user -g --group"),
    "taskset": _wrapper(words=1),
    "time": _wrapper("-f --format -o --output"),
    "timeout": _wrapper("-s --signal -k --kill-after", words=1),
}


def without_wrappers(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The environment that the words set, and the words of the command itself.

    Raises LaunchError if an option of ``env`` asks for words that cannot be split.
    """
    rest = list(words)
    env: dict[str, str] = {}
    while rest:
        name = rest[0].rpartition("/")[2]
        if _ASSIGNMENT.match(rest[0]):
            variable, _, value = rest.pop(0).partition("=")
            env[variable] = value
        elif name in _WRAPPERS:
            rest = _unwrapped(name, rest[1:], env)
        else:
            break
    return env, rest


def _unwrapped(name: str, rest: list[str], env: dict[str, str]) -> list[str]:
    """What is left of the words behind wrapper ``name``; what ``env`` does is done to ``env``."""
    wrapper = _WRAPPERS[name]
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        option, value = _option_of(word, wrapper)
        if value is None and option in wrapper.valued:
            value = rest.pop(0) if rest else ""
        if name == "env":
            if option in ("-i", "--ignore-environment", "-"):
                env.clear()
            elif option in ("-u", "--unset"):
                env.pop(value or "", None)
            elif option in ("-S", "--split-string"):
                rest[:0] = _split(value or "")
    return rest[wrapper.words :]


def _option_of(word: str, wrapper: _Wrapper) -> tuple[str, str | None]:
    """An option and the value in the same word (``--unset=X``, ``-uX``), if one is."""
    if word.startswith("--"):
        option, equals, value = word.partition("=")
        return option, value if equals else None
    if len(word) > 2 and word[:2] in wrapper.valued:
        return word[:2], word[2:]
    return word, None


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise LaunchError(
            f"The text behind `env -S` cannot be split into words ({error}); check its quotes."
        ) from error


def entry_length(words: Sequence[str]) -> int:
    """How many words the entry point takes; 0 if this is no SGLang server."""
    if words[0].rpartition("/")[2] == "sglang":
        return 2 if list(words[1:2]) == ["serve"] else 0
    if not _PYTHON.fullmatch(words[0]):
        return 0
    position = 1
    while position < len(words) and words[position].startswith("-"):
        option = words[position]
        position += 1
        if option in _PYTHON_VALUED:
            position += 1
        elif module := _MODULE_OPTION.fullmatch(option):
            if module[1]:  # -msglang.launch_server
                return _module_length(module[1], words, position)
            name = words[position] if position < len(words) else ""
            return _module_length(name, words, position + 1)
    if position < len(words) and f"/{words[position]}".endswith("/sglang/launch_server.py"):
        return position + 1
    return 0


def _module_length(module: str, words: Sequence[str], position: int) -> int:
    """``position`` is that of the first word behind the module."""
    if module in _SERVER_MODULES:
        return position
    if module in _COMMAND_MODULES and list(words[position : position + 1]) == ["serve"]:
        return position + 1
    return 0


def beginning(words: Sequence[str]) -> str:
    """Enough of a command to recognise it, and nothing that may be a secret: no option's value."""
    shown = [words[0]]
    if len(words) > 1 and _PYTHON.fullmatch(words[0]):
        shown = list(words[: 3 if words[1] == "-m" else 2])
    # An address may carry a password.
    shown = [word for word in shown if "://" not in word and "@" not in word]
    return " ".join([*shown, "..."] if len(shown) < len(words) else shown)
