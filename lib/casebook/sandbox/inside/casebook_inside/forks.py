"""The fork server: SGLang is imported once, each launch runs in a fork of its own.

A fork costs some milliseconds where a fresh import costs seconds, and whatever a launch does to
the process (environment, caches, logging) dies with it. Each fork has its own session, limits on
time, memory and output, and a file for what it prints.

One spare fork waits for the next launch. It has already *rehearsed*: taken as its own the memory that
every launch writes, since copying those pages on first write is a third of a launch's time. And a launch
is answered before its process is taken down, which is another sixth; the next one waits for that.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import selectors
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from casebook_inside import processes

MAX_OUTPUT_BYTES = 1 << 20  # kept of what a launch prints
MAX_FILE_BYTES = 64 << 20  # a launch may write no larger file
MAX_ANSWER_BYTES = 256 << 20
HAND_OVER_SECONDS = 30.0  # for a spare to take a request from us
LOOK_SECONDS = 0.25  # between looks at forks whose channel says nothing
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

    def close(self) -> None:
        self.channel.close()
        self.output.close()


class ForkServer:
    """Reads requests (JSON lines) from ``channel``, answers each from a fork.

    ``enter`` runs first in each fork, to take away what a launch must not have.
    """

    def __init__(
        self,
        channel: socket.socket,
        handlers: dict[str, Handler],
        rehearse: Callable[[], object] | None = None,
        enter: Callable[[], None] | None = None,
    ) -> None:
        self._channel = channel
        self._handlers = handlers
        self._rehearse = rehearse
        self._enter = enter
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, Child] = {}
        self._spare: Child | None = None
        self._incoming = bytearray()
        self._adopts = False  # only a process of our own may take all its children for launches

    def serve(self) -> None:
        """Run until the channel closes; no fork outlives the server."""
        processes.adopt_orphans()
        self._adopts = True
        self._selector.register(self._channel, selectors.EVENT_READ)
        try:
            while True:
                if self._spare is None and self._rehearse is not None:
                    with contextlib.suppress(OSError):  # no memory for it now: later, on demand
                        self._spare = self._fork()
                if not self._step():
                    return
        finally:
            self._close()

    def handle(self, request: dict[str, Any]) -> None:
        """Answer one request that did not come over the channel, and stop."""
        try:
            self._start(request)
            while self._children:
                self._step()
        finally:
            self._close()

    def reply(self, message: dict[str, Any]) -> None:
        self._channel.sendall(json.dumps(message).encode() + b"\n")

    def _step(self) -> bool:
        """Wait for something and deal with it; False once the channel is closed."""
        for key, _ in self._selector.select(self._until_next_look()):
            if key.fileobj is self._channel:
                if not self._read_requests():
                    return False
            elif key.fd in self._children:
                self._read_answer(self._children[key.fd])
        self._look_after_children()
        return True

    def _close(self) -> None:
        for child in [*self._children.values(), *filter(None, [self._spare])]:
            processes.end(child.pid)
            child.close()
        self._children.clear()
        self._spare = None
        self._selector.close()

    def _read_requests(self) -> bool:
        try:
            data = self._channel.recv(1 << 18)
        except OSError:  # the lab died with answers unread
            return False
        if not data:
            return False
        self._incoming += data
        if b"\n" in data:
            *lines, rest = bytes(self._incoming).split(b"\n")
            self._incoming = bytearray(rest)
            for line in lines:
                self._start(json.loads(line))
        return True

    def _start(self, request: dict[str, Any]) -> None:
        line = json.dumps(request).encode() + b"\n"
        try:
            child = self._handed(line)
        except OSError as error:
            outcome = {"kind": "died", "code": None}
            text = f"casebook: no process could be forked for this launch ({error})"
            self.reply({"id": request["id"], "outcome": outcome, "output": text, "seconds": 0.0})
            return
        child.request = request
        child.started = time.monotonic()
        child.deadline = child.started + float(request.get("limits", {}).get("seconds", 60.0))
        self._children[child.channel.fileno()] = child
        self._selector.register(child.channel, selectors.EVENT_READ)

    def _handed(self, line: bytes) -> Child:
        """A fork that was given its request: the spare, or a new one if that died meanwhile."""
        for child in filter(None, [self._spare]):
            self._spare = None
            try:
                if processes.poll(child.pid) is None:
                    child.channel.sendall(line)
                    return child
            except OSError:
                processes.end(child.pid)
            child.close()
        child = self._fork()
        try:
            child.channel.sendall(line)
        except OSError:
            processes.end(child.pid)
            child.close()
            raise
        return child

    def _fork(self) -> Child:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or every fork prints it again
        ours, theirs = socket.socketpair()
        ours.settimeout(HAND_OVER_SECONDS)  # of sending: it is read only when there is something
        output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the fork
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            for opened in (ours, theirs, output):
                opened.close()
            raise
        if pid == 0:
            status = 1
            try:
                os.setsid()
                processes.die_with(parent)
                ours.close()
                self._forget()
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                status = self._run(theirs)
            except BaseException:
                # The server sees an empty answer and the traceback in the output.
                with contextlib.suppress(OSError):
                    os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
            finally:
                os._exit(status)
        theirs.close()
        return Child(pid, ours, output)

    def _forget(self) -> None:
        """In a fork: let go of the server's ends, which are none of the launch's business."""
        self._selector.close()
        self._channel.close()
        for child in [*self._children.values(), *filter(None, [self._spare])]:
            child.close()

    def _run(self, channel: socket.socket) -> int:
        """In the fork: rehearse, wait for the request, answer it."""
        gc.disable()  # its passes would copy pages; a launch is over before garbage matters
        if self._enter is not None:
            self._enter()
        if self._rehearse is not None:
            with contextlib.suppress(Exception):  # it only saves time
                self._rehearse()
        request = json.loads(read_line(channel))
        answer = run_limited(self._handlers[request["op"]], request)
        channel.sendall(json.dumps(answer).encode() + b"\n")
        return 0

    def _read_answer(self, child: Child) -> None:
        try:
            data = child.channel.recv(1 << 18)
        except OSError:
            data = b""
        child.received += data
        if len(child.received) > MAX_ANSWER_BYTES:
            self._finish(child, {"kind": "died", "signal": "SIGKILL"})
        elif not data or data.endswith(b"\n"):
            self._finish(child)

    def _look_after_children(self) -> None:
        """Find forks that are overdue, or that died while something of theirs holds the channel."""
        now = time.monotonic()
        for child in list(self._children.values()):
            status = processes.poll(child.pid)
            if status is not None:
                with contextlib.suppress(OSError):
                    child.channel.setblocking(False)
                    while data := child.channel.recv(1 << 18):
                        child.received += data
                self._finish(child, status=status)
            elif now > child.deadline:
                limit = child.deadline - child.started
                self._finish(child, {"kind": "timeout", "seconds": limit})

    def _finish(
        self, child: Child, outcome: dict[str, Any] | None = None, status: int | None = None
    ) -> None:
        self._selector.unregister(child.channel)
        del self._children[child.channel.fileno()]
        answer = {"outcome": outcome} if outcome else parsed(child.received)
        early = answer is not None and outcome is None  # its own: nobody need wait for its end
        try:
            if answer is not None and early:
                self._answer(child, answer)
        finally:  # also where the lab is gone and cannot be answered
            if status is None:
                status = processes.end(child.pid)
            else:
                processes.kill_group(child.pid)  # what it left running in its session
            if self._adopts:
                known = [*self._children.values(), *filter(None, [self._spare])]
                processes.end_strangers([other.pid for other in known])
        if not early:
            self._answer(child, answer or {"outcome": processes.died(status)})
        child.close()

    def _answer(self, child: Child, answer: dict[str, Any]) -> None:
        answer["id"] = child.request["id"]
        answer["output"] = _text(child.output)
        answer["seconds"] = time.monotonic() - child.started
        self.reply(answer)

    def _until_next_look(self) -> float | None:
        if not self._children:
            return None
        first = min(child.deadline for child in self._children.values()) - time.monotonic()
        return min(max(0.0, first), LOOK_SECONDS)


def run_once(
    handler: Handler,
    request: dict[str, Any],
    seconds: float = 60.0,
    enter: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Run one request in a fork, outside any server, and return its answer."""
    ours, theirs = socket.socketpair()
    answers: list[dict[str, Any]] = []
    server = ForkServer(theirs, {"once": handler}, enter=enter)
    server.reply = answers.append  # type: ignore[method-assign,assignment]
    server.handle({"op": "once", "id": 0, "limits": {"seconds": seconds}, **request})
    ours.close()
    theirs.close()
    return answers[0]


def read_line(channel: socket.socket) -> bytes:
    """One line from a socket. Raises EOFError if it closes first."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = channel.recv(1 << 16)
        if not data:
            raise EOFError("the channel closed before a whole line came")
        line += data
    return bytes(line)


def parsed(received: bytes | bytearray) -> dict[str, Any] | None:
    """A fork's answer, or None if it is not a whole one."""
    if not received.endswith(b"\n"):
        return None
    try:
        answer = json.loads(bytes(received))
    except ValueError:
        return None
    return answer if isinstance(answer, dict) and "outcome" in answer else None


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
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # full, or closed by the launch
                stream.flush()


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


def _text(stream: Any) -> str:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - MAX_OUTPUT_BYTES))
    return str(stream.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace"))
