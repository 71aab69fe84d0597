"""The fork server: SGLang is imported once, each launch runs in a fork of its own.

A fork costs some milliseconds where a fresh import costs seconds, and whatever a launch does to
the process (environment, caches, logging) dies with it. Each fork has its own session, limits on
time, memory and output, and a file for what it prints.

One spare fork waits for the next launch. It has already *rehearsed*: run something harmless that
touches the memory which every launch touches, since copying those pages on first write is a third
of a launch's time.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_OUTPUT_BYTES = 1 << 20  # kept of what a launch prints
MAX_FILE_BYTES = 64 << 20  # a launch may write no larger file
Handler = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class Child:
    """One fork: waiting for its request (a spare), or running it."""

    pid: int
    channel: socket.socket
    output: Any
    request: dict[str, Any] = field(default_factory=dict)
    deadline: float = 0.0
    started: float = 0.0
    received: bytearray = field(default_factory=bytearray)


class ForkServer:
    """Reads requests (JSON lines) from ``channel``, answers each from a fork."""

    def __init__(
        self,
        channel: socket.socket,
        handlers: dict[str, Handler],
        rehearse: Callable[[], None] | None = None,
    ) -> None:
        self._channel = channel
        self._handlers = handlers
        self._rehearse = rehearse
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, Child] = {}
        self._spare: Child | None = None
        self._incoming = bytearray()

    def serve(self) -> None:
        """Run until the channel closes; no fork outlives the server."""
        self._selector.register(self._channel, selectors.EVENT_READ)
        try:
            while True:
                if self._spare is None and self._rehearse is not None:
                    self._spare = self._fork()
                for key, _ in self._selector.select(self._until_next_deadline()):
                    if key.fileobj is self._channel:
                        if not self._read_requests():
                            return
                    else:
                        self._read_answer(key.fd)
                self._stop_overdue()
        finally:
            for child in [*self._children.values(), *filter(None, [self._spare])]:
                _kill(child.pid)

    def drain(self) -> None:
        """Serve what was already sent, wait for the answers, stop."""
        self._read_requests()
        while self._children:
            for key, _ in self._selector.select(self._until_next_deadline()):
                self._read_answer(key.fd)
            self._stop_overdue()

    def reply(self, message: dict[str, Any]) -> None:
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _read_requests(self) -> bool:
        data = self._channel.recv(1 << 16)
        if not data:
            return False
        self._incoming += data
        *lines, rest = bytes(self._incoming).split(b"\n")
        self._incoming = bytearray(rest)
        for line in lines:
            self._start(json.loads(line))
        return True

    def _start(self, request: dict[str, Any]) -> None:
        child, self._spare = self._spare or self._fork(), None
        try:
            child.channel.sendall(json.dumps(request).encode() + b"\n")
        except OSError:  # the spare was killed from outside: another will do
            os.waitpid(child.pid, 0)
            child = self._fork()
            child.channel.sendall(json.dumps(request).encode() + b"\n")
        child.request = request
        child.started = time.monotonic()
        child.deadline = child.started + float(request.get("limits", {}).get("seconds", 60.0))
        self._children[child.channel.fileno()] = child
        self._selector.register(child.channel, selectors.EVENT_READ)

    def _fork(self) -> Child:
        ours, theirs = socket.socketpair()
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the fork
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.setsid()
                ours.close()
                self._channel.close()
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                status = self._run(theirs)
            except BaseException:
                # The server sees an empty answer and the traceback in the output.
                with contextlib.suppress(OSError):
                    os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(status)
        theirs.close()
        return Child(pid, ours, output)

    def _run(self, channel: socket.socket) -> int:
        """In the fork: rehearse, wait for the request, answer it."""
        gc.disable()  # its passes would copy pages; a launch is over before garbage matters
        if self._rehearse is not None:
            self._rehearse()
        request = json.loads(read_line(channel))
        answer = run_limited(self._handlers[request["op"]], request)
        channel.sendall(json.dumps(answer).encode())
        return 0

    def _read_answer(self, fd: int) -> None:
        child = self._children[fd]
        data = child.channel.recv(1 << 18)
        if data:
            child.received += data
            return
        self._finish(fd, child, None)

    def _stop_overdue(self) -> None:
        now = time.monotonic()
        for fd, child in list(self._children.items()):
            if now > child.deadline:
                _kill(child.pid)
                limit = child.deadline - child.started
                self._finish(fd, child, {"kind": "timeout", "seconds": limit})

    def _finish(self, fd: int, child: Child, outcome: dict[str, Any] | None) -> None:
        self._selector.unregister(child.channel)
        child.channel.close()
        del self._children[fd]
        _, status = os.waitpid(child.pid, 0)
        _kill(child.pid)  # what the launch left running in its session
        answer: dict[str, Any] = {}
        if outcome is None and child.received:
            answer = json.loads(bytes(child.received))
        elif outcome is None:
            outcome = died(status)
        if outcome is not None:
            answer = {"outcome": outcome}
        answer["id"] = child.request["id"]
        answer["output"] = _text(child.output)
        answer["seconds"] = time.monotonic() - child.started
        self.reply(answer)

    def _until_next_deadline(self) -> float | None:
        if not self._children:
            return None
        return max(0.0, min(c.deadline for c in self._children.values()) - time.monotonic())


def run_once(handler: Handler, request: dict[str, Any], seconds: float = 60.0) -> dict[str, Any]:
    """Run one request in a fork, outside any server; an empty answer if it fails."""
    ours, theirs = socket.socketpair()
    answers: list[dict[str, Any]] = []
    server = ForkServer(theirs, {"once": handler})
    server.reply = answers.append  # type: ignore[method-assign,assignment]
    request = {"op": "once", "id": 0, "limits": {"seconds": seconds}, **request}
    ours.sendall(json.dumps(request).encode() + b"\n")
    ours.shutdown(socket.SHUT_WR)
    server.drain()
    ours.close()
    theirs.close()
    return answers[0] if answers else {}


def read_line(channel: socket.socket) -> bytes:
    """One line from a socket. Raises EOFError if it closes first."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = channel.recv(1 << 16)
        if not data:
            raise EOFError("the channel closed before a whole line came")
        line += data
    return bytes(line)


def died(status: int) -> dict[str, Any]:
    """The outcome of a fork that ended without an answer."""
    if os.WIFSIGNALED(status):
        return {"kind": "died", "signal": signal.Signals(os.WTERMSIG(status)).name}
    return {"kind": "died", "code": os.WEXITSTATUS(status)}


def run_limited(handler: Handler, request: dict[str, Any]) -> dict[str, Any]:
    """Run ``handler`` in this (forked) process under the request's limits and environment."""
    memory = int(request.get("limits", {}).get("memory_bytes", 4 << 30))
    _set_limit(resource.RLIMIT_AS, _address_space_bytes() + memory)
    _set_limit(resource.RLIMIT_FSIZE, MAX_FILE_BYTES)
    _set_limit(resource.RLIMIT_CORE, 0)
    sys.argv = [request.get("program", "sglang")]
    for name, value in request.get("env", {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if request.get("cwd"):
        os.chdir(request["cwd"])
    try:
        return handler(request)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _set_limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses RLIMIT_AS
        resource.setrlimit(kind, (value, hard))


def _address_space_bytes() -> int:
    try:
        with open("/proc/self/statm") as stream:
            return int(stream.read().split()[0]) * resource.getpagesize()
    except OSError:
        return 64 << 30


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _text(stream: Any) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - MAX_OUTPUT_BYTES))
    text = stream.read().decode("utf-8", "replace")
    stream.close()
    return text
