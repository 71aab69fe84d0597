"""Text that knows where each of its characters stood.

A launch passes through many hands: a YAML scalar holds a shell line, which holds a quoted command
for another host. ``Text`` keeps, per character, its offset in the file that was read first, so that
whatever becomes of it can be shown at its place there.
"""

from __future__ import annotations

import bisect
import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from casebook.errors import LaunchError

MAX_SOURCE_BYTES = 16 * 2**20
NOWHERE = -1


@dataclass(frozen=True)
class Place:
    """A position for people: file, line and column, counted from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Source:
    """A file's name and text."""

    name: str
    text: str

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        position = self.text.find("\n")
        while position >= 0:
            starts.append(position + 1)
            position = self.text.find("\n", position + 1)
        return starts

    def place(self, offset: int) -> Place:
        """Line and column of a character."""
        offset = min(max(offset, 0), len(self.text))
        line = bisect.bisect_right(self._starts, offset)
        return Place(self.name, line, offset - self._starts[line - 1] + 1)

    def line(self, number: int) -> str:
        """The text of a line, without its end; empty beyond the last."""
        if not 1 <= number <= len(self._starts):
            return ""
        start = self._starts[number - 1]
        end = self._starts[number] if number < len(self._starts) else len(self.text)
        return self.text[start:end].rstrip("\n")

    def offset(self, line: int, column: int = 1) -> int:
        """The offset of a line and column, both counted from 1."""
        line = min(max(line, 1), len(self._starts))
        return min(self._starts[line - 1] + column - 1, len(self.text))

    @property
    def lines(self) -> int:
        """How many lines there are."""
        return len(self._starts)

    def whole(self) -> Text:
        """All of it."""
        return Text(self.text, range(len(self.text)))


@dataclass(frozen=True)
class Text:
    """Characters and, for each, its offset in the root source (``NOWHERE`` if made up)."""

    text: str
    at: Sequence[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.text)

    def __add__(self, other: Text) -> Text:
        if not self.text:
            return other
        if not other.text:
            return self
        return Text(self.text + other.text, [*self.at, *other.at])

    def cut(self, start: int, end: int) -> Text:
        """A piece of it."""
        return Text(self.text[start:end], self.at[start:end])

    def place(self, index: int) -> int:
        """The offset of a character; one past the last where ``index`` lies behind the text."""
        return self.at[index] if index < len(self.at) else self.end

    @property
    def start(self) -> int:
        """The first known offset, or ``NOWHERE``."""
        return next((a for a in self.at if a >= 0), NOWHERE)

    @property
    def end(self) -> int:
        """One past the last known offset, or ``NOWHERE``."""
        return next((a + 1 for a in reversed(self.at) if a >= 0), NOWHERE)

    @classmethod
    def made(cls, text: str, at: int = NOWHERE) -> Text:
        """Text that stands nowhere, or all of it at one place."""
        return cls(text, [at] * len(text))

    @classmethod
    def join(cls, parts: Iterable[Text], by: str = "") -> Text:
        """The parts one after another, with ``by`` between."""
        texts: list[str] = []
        at: list[int] = []
        for number, part in enumerate(parts):
            if number and by:
                texts.append(by)
                at.extend([NOWHERE] * len(by))
            texts.append(part.text)
            at.extend(part.at)
        return cls("".join(texts), at)


def read_source(path: Path | str, limit: int = MAX_SOURCE_BYTES) -> Source:
    """Read a text file whole. Raises LaunchError if it is missing, empty, binary or too large."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(data) > limit:
        raise LaunchError(
            f"{path} is larger than {limit // 2**20} MiB, which no launch script or manifest is."
        )
    return Source(path.name, decode(data, str(path)))


def decode(data: bytes, name: str) -> str:
    """Bytes as text: UTF-8, or UTF-16 with its mark. Raises LaunchError in one sentence."""
    if not data.strip():
        raise LaunchError(f"{name} is empty.")
    try:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            text = data.decode("utf-16")
        else:
            text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if b"\0" in data[:4096]:
            raise LaunchError(f"{name} is a binary file, not text.") from error
        raise LaunchError(
            f"{name} is not UTF-8 (byte {error.start} is {data[error.start]:#04x}); "
            "convert it, for example with `iconv -f latin1 -t utf-8`."
        ) from error
    if "\0" in text:
        raise LaunchError(f"{name} is a binary file, not text.")
    return text
