"""A launch: the words that start an SGLang server, and the environment it is started in.

Reading one from words is deliberately plain: what a *shell* makes of a script is another question.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from casebook.errors import LaunchError
from casebook.launch.secrets import Redactor

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_PYTHON = re.compile(r"(?:.*/)?python[0-9.]*")
# Words that start another program and leave its arguments alone.
_WRAPPERS = frozenset({"env", "exec", "nohup", "time", "setsid", "command"})
_SERVER_MODULES = frozenset({"sglang.launch_server", "sglang.srt.launch_server"})
_HINT = "give something like `python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B`"


@dataclass(frozen=True)
class Launch:
    """argv (the words after the entry point) and environment of one server process."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    entry: str = "python -m sglang.launch_server"

    @classmethod
    def of(cls, launch: Launch | str | Sequence[str]) -> Launch:
        """A launch from a launch, a command line or its words."""
        if isinstance(launch, Launch):
            return launch
        return cls.from_text(launch) if isinstance(launch, str) else cls.from_words(launch)

    @classmethod
    def from_text(cls, text: str) -> Launch:
        """A launch from one command line, as a shell would split it; nothing is expanded.

        Raises LaunchError for text that is no command line, or not one of SGLang's.
        """
        try:
            words = shlex.split(text.replace("\\\n", " "))
        except ValueError as error:
            raise LaunchError(
                f"The command line cannot be split into words ({error}); check its quotes."
            ) from error
        return cls.from_words(words)

    @classmethod
    def from_words(cls, words: Sequence[str]) -> Launch:
        """A launch from the words of a command: assignments, wrappers, entry point, arguments.

        Bare arguments (the first word is an option) are taken as those of ``launch_server``.
        Raises LaunchError if the words do not start an SGLang server.
        """
        rest = list(words)
        env: dict[str, str] = {}
        while rest and (_ASSIGNMENT.match(rest[0]) or rest[0] in _WRAPPERS):
            word = rest.pop(0)
            if word not in _WRAPPERS:
                name, _, value = word.partition("=")
                env[name] = value
        if not rest:
            raise LaunchError(f"The launch is empty; {_HINT}.")
        if rest[0].startswith("--"):
            return cls(tuple(rest), MappingProxyType(env))
        entry = _entry_length(rest)
        if entry == 0:
            raise LaunchError(
                f"{_shown(rest)!r} does not start an SGLang server; {_HINT} or `sglang serve ...`."
            )
        return cls(tuple(rest[entry:]), MappingProxyType(env), shlex.join(rest[:entry]))

    def words(self) -> list[str]:
        """The whole command, entry point included (secrets and all: not for printing)."""
        return [*shlex.split(self.entry), *self.argv]

    def value_of(self, *options: str) -> str | None:
        """The last value given to any of ``options`` (``--x v`` or ``--x=v``), or None."""
        found = None
        for position, word in enumerate(self.argv):
            name, equals, value = word.partition("=")
            if name not in options:
                continue
            if equals:
                found = value
            elif position + 1 < len(self.argv):
                found = self.argv[position + 1]
        return found

    def replacing(self, old: str, new: str) -> Launch:
        """The same launch with each argument value ``old`` replaced by ``new``."""
        argv = []
        for word in self.argv:
            name, equals, value = word.partition("=")
            if word == old:
                word = new
            elif equals and name.startswith("--") and value == old:
                word = f"{name}={new}"
            argv.append(word)
        return Launch(tuple(argv), self.env, self.entry)

    def without(self, option: str, values: int = 1) -> Launch:
        """The same launch with ``option`` and its ``values`` following words taken out."""
        argv: list[str] = []
        skip = 0
        for word in self.argv:
            if skip:
                skip -= 1
            elif word == option:
                skip = values
            elif not word.startswith(f"{option}="):
                argv.append(word)
        return Launch(tuple(argv), self.env, self.entry)

    def lines(self) -> str:
        """The command with one option a line, as a script would have it; secrets taken out."""
        redact = Redactor.of(self)
        groups: list[list[str]] = [[]]
        for word in redact.words(self.argv):
            if word.startswith("-") and groups[-1]:
                groups.append([])
            groups[-1].append(word)
        env = [f"{name}={shlex.quote(redact.env(name, value))}" for name, value in self.env.items()]
        options = [shlex.join(group) for group in groups if group]
        return " \\\n  ".join([" ".join([*env, self.entry]), *options])

    def __str__(self) -> str:
        redact = Redactor.of(self)
        env = [f"{name}={shlex.quote(redact.env(name, value))}" for name, value in self.env.items()]
        return " ".join([*env, self.entry, shlex.join(redact.words(self.argv))])

    def __repr__(self) -> str:
        return f"Launch({str(self)!r})"


def _entry_length(words: list[str]) -> int:
    """How many words the entry point takes; 0 if this is no SGLang server."""
    if words[0].rpartition("/")[2] == "sglang":
        return 2 if words[1:2] == ["serve"] else 0
    if not _PYTHON.fullmatch(words[0]):
        return 0
    position = 1
    while position < len(words) and words[position].startswith("-") and words[position] != "-m":
        position += 2 if words[position] in ("-X", "-W") else 1
    target = words[position : position + 3]
    if target[:1] == ["-m"] and target[1:2] and target[1] in _SERVER_MODULES:
        return position + 2
    if target[:1] == ["-m"] and target[1:] in (["sglang", "serve"], ["sglang.cli.main", "serve"]):
        return position + 3
    if target and target[0].endswith("sglang/launch_server.py"):
        return position + 1
    return 0


def _shown(words: list[str]) -> str:
    """The first words of a command: enough to recognise it, too few to hold a secret."""
    return " ".join(words[:3]) + (" ..." if len(words) > 3 else "")
