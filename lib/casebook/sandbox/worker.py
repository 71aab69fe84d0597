"""The lab's end of a child process: start it, send it launches, read its answers.

Whatever happens to a launch inside (it exits, crashes, hangs, prints) is an answer. Only a child that
cannot start, or that dies between launches, is an error.
"""

from __future__ import annotations

import itertools
import os
import queue
import shutil
import socket
import subprocess
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from casebook.errors import WorkerError
from casebook.sandbox import boot
from casebook.sandbox.channel import Answers, Channel, Closed

if TYPE_CHECKING:
    from casebook.capsule import Capsule

START_SECONDS = 300.0  # a cold import from a slow disk
GRACE_SECONDS = 30.0  # beyond a launch's own limit, for the channel
CLOSE_SECONDS = 5.0
TAIL_CHARACTERS = 2000


@dataclass(frozen=True)
class Limits:
    """What one launch may use before it is stopped."""

    seconds: float = 60.0
    memory_bytes: int = 4 << 30


class Worker:
    """One child: a capsule (or a live installation) on one simulated device.

    ``device`` is ``GpuProfile.as_device()``; ``hub`` a Hugging Face cache folder that holds the model
    configurations; ``env`` environment variables that must be there when SGLang is imported;
    ``warmup`` launches whose imports are done once, before any request: of the first that comes to its
    end, and of those before it; ``sizes`` whether to import what sizing memory takes, too; ``bare``
    leaves out all that only saves time, so that each launch finds what a process of its own would.
    Usable from several threads, and as a context manager.
    """

    def __init__(
        self,
        capsule: Capsule,
        device: dict[str, Any],
        hub: Path,
        env: Mapping[str, str] | None = None,
        warmup: Iterable[list[str]] = (),
        sizes: bool = False,
        bare: bool = False,
    ) -> None:
        self.capsule, self.device, self.sizes, self._bare = capsule, device, sizes, bare
        self._numbers = itertools.count(1)
        self._scratch = Path(tempfile.mkdtemp(prefix="casebook-"))
        self._held = _Held(self._scratch)
        # A worker that is dropped without close() must not leave its child behind.
        self._end = weakref.finalize(self, self._held.end)
        self._log = self._scratch / "child.log"
        try:
            self._start(hub, env or {}, [list(words) for words in warmup])
        except BaseException:
            self.close()
            raise

    def _start(self, hub: Path, extra: Mapping[str, str], warmup: list[list[str]]) -> None:
        # What a launch can write to is neither the log nor the tools that tell of the GPU.
        home, shims = self._scratch / "home", self._scratch / "shims"
        home.mkdir()
        boot.write_shims(shims, self.device)
        record = boot.boot_record(self.capsule, self.device, shims, home)
        # What the vendor's images set comes first; a launch's own values win.
        preset = {} if self.capsule.live else dict(self.device.get("environment") or {})
        env = boot.environment(hub, home, {**preset, **extra})
        if self.capsule.live:
            # The node's own environment made that installation work; keep it.
            env = {**os.environ, **{k: v for k, v in env.items() if k not in boot.RESERVED}}
        ours, theirs = socket.socketpair()
        with theirs, self._log.open("wb") as log:
            self._channel = self._held.channel = Channel(ours)
            try:
                self._held.process = subprocess.Popen(
                    boot.command(self.capsule, theirs.fileno()),
                    env=env,
                    cwd=home,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise WorkerError(
                    f"The child of SGLang {self.capsule.release} could not be started with "
                    f"{self.capsule.python} ({error}); check that interpreter and the environment."
                ) from error
        self._send({**record, "warmup": warmup, "bare": self._bare, "sizes": self.sizes})
        self.ready = self._take(START_SECONDS)
        if "ready" not in self.ready:
            tail = self.ready.get("traceback", "")[-TAIL_CHARACTERS:]
            where = self.capsule.python if self.capsule.live else "its capsule"
            raise WorkerError(
                f"SGLang {self.capsule.release} could not be imported in {where}: "
                f"{self.ready.get('failed')}. The end of the traceback:\n{tail}"
            )

    @property
    def package(self) -> Path:
        """The folder of the ``sglang`` package that runs in the child."""
        return Path(self.ready["package"])

    def call(self, operation: str, limits: Limits | None = None, **request: Any) -> dict[str, Any]:
        """Run one request in a fork of the child and return its raw answer."""
        ((_, answer),) = self.map(operation, [request], limits)
        return answer

    def map(
        self,
        operation: str,
        requests: Iterable[dict[str, Any]],
        limits: Limits | None = None,
        jobs: int = 1,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Run requests, ``jobs`` at a time; yields ``(position, answer)`` as they finish.

        Not taking all of them is fine: what still runs is dropped when it ends.
        """
        limits = limits or Limits()
        answers: Answers = queue.SimpleQueue()
        pending: dict[int, int] = {}
        numbered = enumerate(requests)
        try:
            while True:
                for position, request in itertools.islice(numbered, max(1, jobs) - len(pending)):
                    number = next(self._numbers)
                    pending[number] = position
                    message = {"op": operation, "id": number, "limits": asdict(limits), **request}
                    self._send(_without_reserved(message), answers)
                if not pending:
                    return
                answer = self._take(limits.seconds + GRACE_SECONDS, answers)
                yield pending.pop(answer["id"]), answer
        finally:
            self._channel.forget(pending)

    def _send(self, message: dict[str, Any], answers: Answers | None = None) -> None:
        try:
            self._channel.send(message, answers)
        except Closed as error:
            raise self._dead() from error

    def _take(self, seconds: float, answers: Answers | None = None) -> dict[str, Any]:
        try:
            return self._channel.take(seconds, answers)
        except TimeoutError as error:
            self.close()
            raise WorkerError(
                f"The child of SGLang {self.capsule.release} did not answer within "
                f"{seconds:.0f} s and was stopped; run the launch again."
            ) from error
        except Closed as error:
            raise self._dead() from error

    def _dead(self) -> WorkerError:
        try:
            tail = self._log.read_text("utf-8", "replace")[-TAIL_CHARACTERS:]
        except OSError:  # closed before
            tail = ""
        self.close()
        return WorkerError(
            f"The child of SGLang {self.capsule.release} died; run the launch again. "
            f"The last it printed:\n{tail or '(nothing)'}"
        )

    @property
    def alive(self) -> bool:
        """Whether the child can take another launch."""
        process = self._held.process
        return self._end.alive and process is not None and process.poll() is None

    def close(self) -> None:
        """Stop the child and remove its scratch folder. Safe to call twice."""
        self._end()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Held:
    """What a worker must give back: its channel, its child, its folder."""

    def __init__(self, scratch: Path) -> None:
        self.owner = os.getpid()
        self.scratch = scratch
        self.channel: Channel | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def end(self) -> None:
        if os.getpid() != self.owner:
            return  # a fork of the lab has no say in this
        if self.channel is not None:
            self.channel.close()  # the server ends, and with it every fork
        if self.process is not None:
            try:
                self.process.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.scratch, ignore_errors=True)


def _without_reserved(request: dict[str, Any]) -> dict[str, Any]:
    """``request`` with an environment that leaves alone what the sandbox keeps for itself."""
    env = request.get("env") or {}
    return {**request, "env": {k: v for k, v in env.items() if not boot.is_reserved(k)}}
