"""JSON lines over a socket to a child, with a thread that reads, so that neither end waits for the other.

A message with an ``id`` goes to whoever expects that number; the rest goes to ``first``. What nobody
expects any more (its consumer went away) is dropped.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Iterable
from typing import Any

Answers = queue.SimpleQueue[dict[str, Any] | None]


class Closed(Exception):  # noqa: N818 - not an error by itself
    """The other end is gone."""


class _Routes:
    """Who expects which answer. The reading thread holds this and not the channel's owner."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.first: Answers = queue.SimpleQueue()
        self.expected: dict[int, Answers] = {}
        self.closed = False

    def deliver(self, message: dict[str, Any]) -> None:
        with self.lock:
            number = message.get("id")
            to = self.first if number is None else self.expected.pop(number, None)
        if to is not None:
            to.put(message)

    def close(self) -> None:
        with self.lock:
            self.closed = True
            waiting = [self.first, *self.expected.values()]
            self.expected.clear()
        for answers in waiting:
            answers.put(None)


class Channel:
    """The lab's end of a child's socket. Usable from several threads."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._routes = _Routes()
        self._sending = threading.Lock()
        reader = threading.Thread(
            target=_read, args=(connection, self._routes), name="casebook-channel", daemon=True
        )
        reader.start()

    def send(self, message: dict[str, Any], answers: Answers | None = None) -> None:
        """Send ``message``; its answer will be put on ``answers``. Raises Closed."""
        line = json.dumps(message).encode() + b"\n"
        routes = self._routes
        if answers is not None:
            with routes.lock:
                if routes.closed:
                    raise Closed
                routes.expected[message["id"]] = answers
        try:
            with self._sending:
                self._connection.sendall(line)
        except OSError as error:
            raise Closed from error

    def take(self, seconds: float, answers: Answers | None = None) -> dict[str, Any]:
        """The next message on ``answers``, or that has no number. Raises Closed or TimeoutError."""
        try:
            message = (answers or self._routes.first).get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if message is None:
            raise Closed
        return message

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop the answers to these messages when they come."""
        with self._routes.lock:
            for number in numbers:
                self._routes.expected.pop(number, None)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # wakes the reader, which close() would not
        self._connection.close()


def _read(connection: socket.socket, routes: _Routes) -> None:
    received = bytearray()
    with contextlib.suppress(OSError, ValueError):  # a line that is no JSON ends it too
        while data := connection.recv(1 << 18):
            received += data
            if b"\n" in data:
                *lines, rest = bytes(received).split(b"\n")
                received = bytearray(rest)
                for line in lines:
                    routes.deliver(json.loads(line))
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    routes.close()
