"""From a log of any size and shape to the few lines that speak of memory, each with its number and rank.

A start-up says some fifty lines of interest and a log may have millions, so markers are searched in the
whole text at once (:meth:`bytes.find`) and only their lines are looked at. What surrounds a message is
taken off here: colours, carriage returns of progress bars, the envelopes of container runtimes. Ranks
write to one stream, so that a line may hold two messages, or one torn by another; each is cut out, and
a torn one is left to the patterns, which want a value with its unit.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from casebook.measure.errors import LogError

MAX_BYTES = 4 * 2**30
MAX_LINE = 2**20
MAX_TRACEBACK = 600

MARKERS: tuple[bytes, ...] = (
    b"server_args=",
    b"Load weight ",
    b"Init torch distributed begin",
    b"Mamba Cache is allocated",
    b"ssm_state",
    b"ReplaySSM ring buffers",
    b"KV Cache ",
    b"KV cache allocated",
    b"SWAKVPool ",
    b"sliding window memory pool",
    b"Memory pool end",
    b"Capture ",
    b"max_total_num_tokens=",
    b"max_running_requests ",
    b"larger than the profiled value",
    b"fired up and ready",
    b"Not enough ",
    b"Loaded weights leave",
    b"state cache is too small",
    b"OutOfMemoryError",
    b"out of memory",
    b"hit an exception",
    b"exit code",
    b"terminated with ",
    b"scheduler is dead",
    b"Traceback (most recent call last)",
)
_WORDS = tuple(marker.decode() for marker in MARKERS)

_ANSI = re.compile(rb"(?:\x1b|\^\[|#033)\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\n]*\x07")
_STAMP = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?"
_SEGMENTS = re.compile(rf"\r|(?={_STAMP})")
_RANK = r"(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d{1,6}"
_PREFIX = re.compile(rf"{_STAMP}((?: [^\]\s]{{1,60}}){{0,8}})\] ?")
_BARE = re.compile(rf"\[({_RANK}(?: {_RANK})*(?:\.\.[A-Z_]*\d{{1,6}})?)\] ")
_RANKS = re.compile(_RANK)
_SPAN = re.compile(r"([A-Z_]+)(\d+)\.\.[A-Z_]*(\d+)$")
_COMPOSE = re.compile(r"^([\w./-]{1,100}?)\s+\| ")
_POD = re.compile(r"^\[pod/([^\]\s]{1,200})\] ")


@dataclass(frozen=True)
class Message:
    """One message of one rank. ``text`` begins after the logger's own prefix."""

    line: int
    text: str
    rank: str = ""
    stream: str = ""
    prefixed: bool = False
    """Whether the logger's prefix stood before it; a traceback's lines have none."""


@dataclass(frozen=True)
class Source:
    """A log in memory, free of colours."""

    name: str
    data: bytes

    def messages(self) -> Iterator[Message]:
        """The messages with a marker, in order."""
        stream = ""
        for number, start in self._marked.items():
            end = self.data.find(b"\n", start)
            end = len(self.data) if end < 0 else end
            whole = self.data[start : min(end, start + MAX_LINE)].decode("utf-8", "replace")
            text, stream = _unwrap(whole)
            for message in _split(text, number, stream):
                if any(word in message.text for word in _WORDS):
                    yield message

    @cached_property
    def _marked(self) -> Mapping[int, int]:
        """Line number -> offset of each line that holds a marker."""
        starts: set[int] = set()
        for marker in MARKERS:
            at = self.data.find(marker)
            while at >= 0:
                starts.add(self.data.rfind(b"\n", 0, at) + 1)
                end = self.data.find(b"\n", at)
                at = self.data.find(marker, end) if end >= 0 else -1
        found: dict[int, int] = {}
        number, before = 1, 0
        for start in sorted(starts):
            number += self.data.count(b"\n", before, start)
            before = start
            found[number] = start
        return found

    def following(self, line: int) -> Iterator[tuple[int, str]]:
        """The lines after ``line`` up to the next that a logger began: a traceback's body."""
        at = self._marked.get(line)
        if at is None:
            return
        for number in range(line + 1, line + 1 + MAX_TRACEBACK):
            start = self.data.find(b"\n", at) + 1
            if not start or start >= len(self.data):
                return
            end = self.data.find(b"\n", start)
            end = len(self.data) if end < 0 else end
            text, _ = _unwrap(self.data[start : min(end, start + 4096)].decode("utf-8", "replace"))
            if _PREFIX.search(text):
                return
            yield number, text.rstrip("\r")
            at = start


def open_source(text_or_path: str | bytes | Path) -> Source:
    """A log given as its text, its bytes or its path (also gzip, UTF-16). Raises LogError."""
    if isinstance(text_or_path, bytes):
        return Source("the log", _clean(text_or_path, "the log"))
    if isinstance(text_or_path, str) and _is_text(text_or_path):
        return Source("the log", _clean(text_or_path.encode("utf-8", "replace"), "the log"))
    path = Path(text_or_path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise LogError(f"{path} has more than {MAX_BYTES >> 30} GiB; give its start alone.")
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            with gzip.open(path) as file:
                data = file.read(MAX_BYTES)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LogError(f"{path} cannot be read: {reason}.") from error
    return Source(path.name, _clean(data, str(path)))


def _is_text(value: str) -> bool:
    return "\n" in value or not value.strip() or any(word in value for word in _WORDS)


def _clean(data: bytes, name: str) -> bytes:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = data.decode("utf-16", "replace").encode("utf-8", "replace")
    elif b"\0" in data[:4096]:
        raise LogError(f"{name} is a binary file, not a log.")
    if not data.strip():
        raise LogError(f"{name} is empty.")
    if b"[" in data and any(escape in data for escape in (b"\x1b", b"^[[", b"#033[")):
        data = _ANSI.sub(b"", data)
    return data


def _unwrap(line: str) -> tuple[str, str]:
    """``(text, stream)``: without the container runtime's envelope."""
    if (line.startswith('{"') and '"log"' in line[:4096]) or line.startswith('{"message"'):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            inner = record.get("log", record.get("message"))
            if isinstance(inner, str):
                return inner.rstrip("\n"), ""
    for pattern in (_COMPOSE, _POD):
        if match := pattern.match(line):
            return line[match.end() :], match[1]
    return line, ""


def _split(text: str, number: int, stream: str) -> Iterator[Message]:
    for segment in _SEGMENTS.split(text):
        if not segment:
            continue
        match = _PREFIX.search(segment)
        if match:
            rank = " ".join(_RANKS.findall(match[1]))
            yield Message(number, segment[match.end() :], rank, stream, True)
            continue
        bare = _BARE.search(segment)
        if bare:
            for rank in _ranks(bare[1]):
                yield Message(number, segment[bare.end() :], rank, stream, True)
        else:
            yield Message(number, segment, "", stream)


def _ranks(label: str) -> Iterable[str]:
    """``TP0..3`` as people quote it stands for four ranks."""
    if match := _SPAN.search(label):
        first, last = int(match[2]), int(match[3])
        if first <= last <= first + 1024:
            return [f"{label[: match.start()]}{match[1]}{i}" for i in range(first, last + 1)]
    return [label]
