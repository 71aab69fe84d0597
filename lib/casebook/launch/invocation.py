"""One command as the shell would start it, and what reading a whole script found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tree_sitter import Node

from casebook.launch.field_text import Empty, FieldText
from casebook.launch.shell_state import State
from casebook.launch.source import Text

BUILTINS = frozenset(
    [
        ".",
        ":",
        "[",
        "alias",
        "bg",
        "bind",
        "break",
        "builtin",
        "caller",
        "cd",
        "command",
        "compgen",
        "complete",
        "compopt",
        "continue",
        "declare",
        "dirs",
        "disown",
        "echo",
        "enable",
        "eval",
        "exec",
        "exit",
        "export",
        "false",
        "fc",
        "fg",
        "getopts",
        "hash",
        "help",
        "history",
        "jobs",
        "kill",
        "let",
        "local",
        "logout",
        "mapfile",
        "popd",
        "printf",
        "pushd",
        "pwd",
        "read",
        "readarray",
        "readonly",
        "return",
        "set",
        "shift",
        "shopt",
        "source",
        "suspend",
        "test",
        "times",
        "trap",
        "true",
        "type",
        "typeset",
        "ulimit",
        "umask",
        "unalias",
        "unset",
        "wait",
        "[[",
    ]
)


@dataclass(frozen=True)
class Redirect:
    """``> file`` and its like."""

    operator: str
    target: FieldText | None
    at: int


@dataclass(frozen=True)
class Invocation:
    """One command as the shell would start it."""

    words: tuple[FieldText, ...]
    env: Mapping[str, FieldText]
    """Exported variables and those set in front of the command."""
    prefix: Mapping[str, FieldText]
    """Only those set in front of it."""
    unexported: Mapping[str, FieldText]
    """Variables the script has set that the command does not get."""
    start: int
    end: int
    """Root offsets of the command."""
    stdin: FieldText | None = None
    redirects: tuple[Redirect, ...] = ()
    cloudy: str = ""
    """Why it may not run."""
    empties: tuple[Empty, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """The command's first word."""
        return self.words[0].text if self.words else ""

    @property
    def exact(self) -> bool:
        """Whether the words are what bash passes, whatever the surroundings."""
        return all(w.exact for w in self.words) and all(e.known for e in self.empties)

    @property
    def reason(self) -> str:
        """Why it is not exact."""
        for word in self.words:
            if not word.exact:
                return word.reason
        unknown = [e.name for e in self.empties if not e.known]
        return f"${unknown[0]} is not set in the script" if unknown else ""


@dataclass
class Reading:
    """What walking a script found."""

    text: Text
    root: Node
    invocations: list[Invocation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    state: State = field(default_factory=State)
    broken: list[int] = field(default_factory=list)
    """Root offsets of places the grammar does not understand."""
    used: set[str] = field(default_factory=set)
    """Variables that the script reads."""
    written: dict[str, FieldText] = field(default_factory=dict)
    """Files that the script writes from a here-document."""

    @property
    def exact(self) -> bool:
        """Whether every command's words are certain."""
        return (
            not self.broken
            and not self.notes
            and all(i.exact and not i.cloudy for i in self.invocations)
        )
