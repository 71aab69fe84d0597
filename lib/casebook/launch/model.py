"""A launch: the words that start an SGLang server, and the environment it is started in.

Reading one from words is deliberately plain: what a *shell* makes of a script is another question.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from casebook.errors import LaunchError
from casebook.launch import command
from casebook.launch.secrets import Redactor

# A shell takes both characters away, so that what they part becomes one word.
_CONTINUATION = re.compile(r"(?<!\\)((?:\\\\)*)\\\r?\n")
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
            words = shlex.split(_CONTINUATION.sub(r"\1", text))
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
        if any("\0" in word for word in words):
            raise LaunchError(f"A word of the launch holds a NUL character; {_HINT}.")
        env, rest = command.without_wrappers(words)
        if not rest:
            raise LaunchError(f"The launch is empty; {_HINT}.")
        if rest[0].startswith("--"):
            return cls(tuple(rest), env)
        entry = command.entry_length(rest)
        if entry == 0:
            raise LaunchError(
                f"{command.beginning(rest)!r} does not start an SGLang server; {_HINT} "
                "or `sglang serve ...`."
            )
        return cls(tuple(rest[entry:]), env, shlex.join(rest[:entry]))

    def __post_init__(self) -> None:
        # A copy: what a caller does to its dictionary later is not this launch's.
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))

    def __reduce__(self) -> tuple[Any, ...]:  # a mapping proxy does not go to another process
        return (Launch, (self.argv, dict(self.env), self.entry))

    def __hash__(self) -> int:
        return hash((self.argv, frozenset(self.env.items()), self.entry))

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
