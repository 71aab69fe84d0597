"""From the commands of a script to the servers they start, through wrappers and further shells.

``nohup``, ``numactl`` or ``docker run`` hand words on; ``ssh``, ``bash -c`` and a here-document hand
*text* on, which the next shell reads again. Each such text is kept, so that a reader can see what
one level of quotes did to a flag.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from casebook.launch.command import entry_length
from casebook.launch.field_text import FieldText
from casebook.launch.handed_on import child_state, shell_text
from casebook.launch.invocation import Invocation, Reading
from casebook.launch.shell_state import State
from casebook.launch.source import Text
from casebook.launch.walk import walk
from casebook.launch.wrappers import (
    SHELLS,
    WRAPPERS,
    Way,
    end_environment,
    module_of,
    take_assignments,
    unwrap,
)

MAX_SHELLS = 8


@dataclass(frozen=True)
class Stage:
    """A text (or words) as one reader got it."""

    reader: str
    """Who reads it: ``bash``, ``ssh gpu-node``, ``bash -c``."""
    text: Text


@dataclass(frozen=True)
class Server:
    """One SGLang server that a script starts, its arguments with their places."""

    arguments: tuple[FieldText, ...]
    """The words after the entry point."""
    entry: tuple[FieldText, ...]
    env: Mapping[str, FieldText]
    left_behind: Mapping[str, FieldText]
    """Variables set in the script that the server does not get."""
    invocation: Invocation
    """The command of the outermost text that leads to it."""
    inner: Invocation
    """The command of the innermost text."""
    stages: tuple[Stage, ...]
    via: tuple[str, ...]
    """Wrappers and shells passed on the way."""
    ended_at: str = ""
    """The program at which exported variables stop (``ssh``, ``docker``)."""
    before_entry: tuple[FieldText, ...] = ()
    """Words in front of the entry point that belong to wrappers."""

    @property
    def exact(self) -> bool:
        """Whether the words are what the server gets, whatever the surroundings."""
        return self.inner.exact and self.invocation.exact and not self.reason

    @property
    def reason(self) -> str:
        """Why the words are not certain; empty if they are."""
        for word in self.arguments:
            if not word.exact:
                return word.reason
        return self.inner.reason or self.invocation.reason


@dataclass
class Found:
    """All that a shell text leads to."""

    servers: list[Server] = field(default_factory=list)
    readings: list[tuple[tuple[Stage, ...], Reading]] = field(default_factory=list)
    others: list[tuple[Invocation, tuple[str, ...]]] = field(default_factory=list)
    """Commands that start no server, with the way to them."""
    notes: list[str] = field(default_factory=list)


def follow(text: Text, state: State, reader: str = "bash") -> Found:
    """Read a script and everything it hands on to other shells."""
    found = Found()
    _read(text, state, (Stage(reader, text),), (), None, None, found, {})
    return found


def follow_words(
    words: Sequence[FieldText], env: Mapping[str, FieldText], text: Text, reader: str, outside: str
) -> Found:
    """Pursue a command that is given as a list of words (no shell has read it)."""
    found = Found()
    start = next((w.value.start for w in words if w.value.start >= 0), 0)
    end_ = max((w.value.end for w in words), default=start)
    invocation = Invocation(tuple(words), dict(env), {}, {}, start, max(end_, start + 1))
    way = Way(list(words), dict(env), [], {})
    pursue(way, invocation, invocation, (Stage(reader, text),), found, {}, State(outside=outside))
    return found


def _read(
    text: Text,
    state: State,
    stages: tuple[Stage, ...],
    via: tuple[str, ...],
    outer: Invocation | None,
    stdin: FieldText | None,
    found: Found,
    files: dict[str, FieldText],
    ended: str = "",
    lost: Mapping[str, FieldText] | None = None,
) -> None:
    reading = walk(text, state)
    found.readings.append((stages, reading))
    found.notes.extend(reading.notes)
    for name, content in reading.written.items():
        files[name.rpartition("/")[2]] = content
    for invocation in reading.invocations:
        if invocation.stdin is None and stdin is not None:
            invocation = replace(invocation, stdin=stdin)
        way = Way(
            list(invocation.words), dict(invocation.env), list(via), dict(invocation.unexported)
        )
        way.left.update(lost or {})
        way.ended = ended
        pursue(way, invocation, outer or invocation, stages, found, files, state)


def pursue(
    way: Way,
    inner: Invocation,
    outer: Invocation,
    stages: tuple[Stage, ...],
    found: Found,
    files: dict[str, FieldText],
    state: State,
    descend: Callable[..., None] | None = None,
) -> None:
    for _ in range(64):
        take_assignments(way)
        if not way.words:
            return
        length = entry_length([w.text for w in way.words]) or module_of(way)
        if length:
            found.servers.append(
                Server(
                    tuple(way.words[length:]),
                    tuple(way.words[:length]),
                    way.env,
                    way.left,
                    outer,
                    inner,
                    stages,
                    tuple(way.via),
                    way.ended,
                    tuple(way.skipped),
                )
            )
            return
        name = way.name()
        nested = shell_text(way, inner, files)
        if nested is not None:
            label, content, arguments, fresh = nested
            if len(stages) > MAX_SHELLS or content is None:
                break
            if fresh:
                end_environment(way, name)
            child = child_state(way, state, label, arguments, fresh)
            more = (*stages, Stage(label, content.value))
            if not content.exact:
                found.notes.append(f"What `{label}` reads is not certain: {content.reason}.")
            (descend or _read)(
                content.value,
                child,
                more,
                (*way.via, label),
                outer,
                _own_stdin(name, inner, content),
                found,
                files,
                way.ended,
                way.left,
            )
            return
        if name not in WRAPPERS or not unwrap(way, name):
            break
    found.others.append((inner, tuple(way.via)))


def _own_stdin(name: str, inner: Invocation, content: FieldText) -> FieldText | None:
    """A command's here-document goes to what runs behind ``ssh host command`` too."""
    if inner.stdin is None or content.value is inner.stdin.value:
        return None
    return inner.stdin if name == "ssh" or name in SHELLS else None
