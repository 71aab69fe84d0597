"""The parts of a trail: frames, changes, accesses to the environment, arguments, outcome."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """What became of one argument. The order is the order in which a reader should look."""

    REJECTED = "rejected"
    OVERRIDDEN_SILENTLY = "overridden silently"
    OVERRIDDEN = "overridden"
    LOST = "lost"
    HONOURED = "honoured"
    DERIVED = "derived"
    DEFAULTED = "defaulted"

    @property
    def rank(self) -> int:
        """Position in reading order, 0 first."""
        return list(Verdict).index(self)


class OutcomeKind(StrEnum):
    """How the launch ended, as far as its arguments decide."""

    STARTS = "starts"
    """Every argument resolved and checked; the engine would now start its processes."""
    REJECTED = "rejected"
    """SGLang raised while it resolved or checked the arguments."""
    REFUSED = "refused"
    """argparse refused the words."""
    EXITED = "exited"
    """SGLang ended the process itself (``--help``)."""
    DIED = "died"
    """The process was killed: a crash, or its memory limit."""
    TIMED_OUT = "timed out"
    """The launch ran past its time limit and was stopped."""


@dataclass(frozen=True)
class Frame:
    """A place in SGLang: file below the package, line, function, and the text of the line."""

    file: str
    line: int
    function: str
    code: str = ""

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"

    @property
    def where(self) -> str:
        """File, line and function, as in ``server_args.py:1082 in _handle_missing_default_values``."""
        return f"{self} in {self.function}"


@dataclass(frozen=True)
class LogLine:
    """One log record or warning of SGLang's."""

    level: str
    message: str
    frame: Frame | None


@dataclass(frozen=True)
class Change:
    """One change of one argument's value in effect."""

    old: Any
    new: Any
    kind: str
    """``assign``; ``declare``; ``in place`` (a container edited, found by comparing, line unknown); or
    ``fallback`` (the release's declared value for a field that nobody decided)."""
    phase: str
    """``parse``, ``resolve`` or ``check``."""
    frames: tuple[Frame, ...]
    """The deciding line first, then its callers."""
    source: str | None = None
    """The name under which SGLang itself files the decision, in the declaration style."""
    message: LogLine | None = None
    """The log record that came with it, if any."""

    @property
    def frame(self) -> Frame | None:
        """The deciding line."""
        return self.frames[0] if self.frames else None

    @property
    def where(self) -> str:
        """The deciding line, or how the change was found."""
        if self.frame:
            return self.frame.where
        return "(declared fallback)" if self.kind == "fallback" else "(edited in place)"


@dataclass(frozen=True)
class Argument:
    """One server argument: typed, parsed, changed, final, judged."""

    field: str
    flag: str
    """The option that sets it; empty if there is none."""
    typed: str | None
    """The words as they were given, or None."""
    origin: str
    """``command line``, ``config file`` or ``default``."""
    parsed: Any
    changes: tuple[Change, ...]
    final: Any
    """The value in effect at the end, or when the launch died."""
    verdict: Verdict
    note: str
    """One sentence on the verdict."""

    @property
    def message(self) -> str:
        """The last log message that came with a change; empty if none did."""
        said = [change.message.message.strip() for change in self.changes if change.message]
        return said[-1] if said else ""

    @property
    def where(self) -> str:
        """Where its last change was decided; empty if nothing changed it."""
        return self.changes[-1].where if self.changes else ""


@dataclass(frozen=True)
class EnvAccess:
    """One environment variable as SGLang read or set it."""

    name: str
    operation: str
    """``read``, ``set`` or ``unset``."""
    value: str | None
    """The value read, or set; None if absent."""
    given: bool
    """Whether the launch gave it."""
    frame: Frame


@dataclass(frozen=True)
class Failure:
    """An exception SGLang raised, with its frames (outermost first) and its cause."""

    type: str
    message: str
    frames: tuple[Frame, ...]
    cause: Failure | None = None

    @property
    def frame(self) -> Frame | None:
        """SGLang's innermost frame."""
        return self.frames[-1] if self.frames else None

    def begins(self, text: str) -> bool:
        """Whether its message begins with ``text``; white space is not compared."""
        return squeezed(self.message).startswith(squeezed(text))


@dataclass(frozen=True)
class Outcome:
    """How the launch ended, in one kind and one sentence."""

    kind: OutcomeKind
    sentence: str
    failure: Failure | None = None
    nearest_flags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """For each unknown flag: the flags this release has that look like it."""

    @property
    def starts(self) -> bool:
        """Whether the launch gets past its arguments."""
        return self.kind is OutcomeKind.STARTS


def same(one: Any, other: Any) -> bool:
    """Equal in value and in type: ``1`` is not ``True``, and ``8`` is not ``8.0``."""
    return type(one) is type(other) and bool(one == other)


def squeezed(text: str) -> str:
    """``text`` without its white space."""
    return "".join(text.split())


def short(value: Any, width: int = 60) -> str:
    """A value as a reader wants it: as Python writes it, cut in the middle if long."""
    if isinstance(value, dict) and set(value) == {"$type", "$repr"}:
        text = str(value["$repr"])
    else:
        text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= width else f"{text[: width - 13]} … {text[-10:]}"
