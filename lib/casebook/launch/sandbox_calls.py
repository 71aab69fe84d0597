"""The recorder's output: one record for each command that the script's shell started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One command as the shell started it: exact words, exact environment."""

    path: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    stdin: str

    @property
    def name(self) -> str:
        """The command's name without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def words(self) -> tuple[str, ...]:
        """The command's words, its name first."""
        return (self.path, *self.arguments)


_PIECE = re.compile(rb"(\d+) ([01]) (\d+) ([^\x02]*)\x02")


def calls_in(data: bytes) -> tuple[Call, ...]:
    """The records, put together again. A script can forge some; it deceives its owner only."""
    open_: dict[bytes, list[bytes]] = {}
    calls: list[Call] = []
    for match in _PIECE.finditer(data):
        parts = open_.setdefault(match[1], [])
        parts.append(match[4])
        if match[2] == b"1":
            continue
        whole = b"".join(open_.pop(match[1])).replace(b"\1n", b"\n").replace(b"\1a", b"\1")
        call = _call(whole)
        if call is not None:
            calls.append(call)
    return tuple(calls)


def _call(data: bytes) -> Call | None:
    head = re.match(rb"(\d+):(\d+):", data)
    if head is None:
        return None
    position, items = head.end(), []
    while match := re.match(rb"(\d+):", data[position : position + 12]):
        first = position + match.end()
        position = first + int(match[1])
        items.append(os.fsdecode(data[first:position]))
    words, variables = int(head[1]), int(head[2])
    if len(items) != words + variables + 1 or not words:
        return None
    env = dict(v.partition("=")[::2] for v in items[words : words + variables])
    for name in ("_", "SHLVL", "PWD", "OLDPWD", "TMPDIR", "USER", "LC_ALL", "HOME", "PATH"):
        env.pop(name, None)
    return Call(items[0], tuple(items[1:words]), env, items[-1])
