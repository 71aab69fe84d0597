"""The lab's end of a child process: start it, send it launches, read its answers.

Whatever happens to a launch inside (it exits, crashes, hangs, prints) is an answer. Only a child that
cannot start, or that dies between launches, is an error.
"""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from casebook.errors import WorkerError
from casebook.sandbox import boot

if TYPE_CHECKING:
    from casebook.capsule import Capsule

START_SECONDS = 300.0  # a cold import from a slow disk
GRACE_SECONDS = 30.0  # beyond a launch's own limit, for the channel
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
    ``warmup`` launches whose imports are done once, before any request.
    Usable from several threads, and as a context manager.
    """

    def __init__(
        self,
        capsule: Capsule,
        device: dict[str, Any],
        hub: Path,
        env: Mapping[str, str] | None = None,
        warmup: Iterable[list[str]] = (),
    ) -> None:
        self.capsule, self.device = capsule, device
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._scratch = Path(tempfile.mkdtemp(prefix="casebook-"))
        self._log = self._scratch / "child.log"
        self._received = bytearray()
        self._closed = False
        boot.write_shims(self._scratch / "shims", device)
        self._start(boot.environment(hub, self._scratch, {**dict(device.get("environment") or {}), **(env or {})}), [list(w) for w in warmup])

    def _start(self, env: dict[str, str], warmup: list[list[str]]) -> None:
        ours, theirs = socket.socketpair()
        self._channel = ours
        if self.capsule.live:
            # The node's own environment made that installation work; keep it.
            import os

            env = {**os.environ, **{k: v for k, v in env.items() if k not in boot.RESERVED}}
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                boot.command(self.capsule, theirs.fileno()),
                env=env,
                cwd=self._scratch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        record = boot.boot_record(self.capsule, self.device, self._scratch / "shims")
        try:
            self._send({**record, "warmup": warmup})
            self.ready = self._receive(START_SECONDS)
        except WorkerError:
            self.close()
            raise
        if "ready" not in self.ready:
            tail = self.ready.get("traceback", "")[-TAIL_CHARACTERS:]
            self.close()
            raise WorkerError(
                f"SGLang {self.capsule.release} could not be imported in its capsule: "
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
        """Run requests, ``jobs`` at a time; yields ``(position, answer)`` as they finish."""
        limits = limits or Limits()
        pending: dict[int, int] = {}
        numbered = enumerate(requests)
        with self._lock:
            while True:
                for position, request in itertools.islice(numbered, jobs - len(pending)):
                    number = next(self._numbers)
                    pending[number] = position
                    self._send({"op": operation, "id": number, "limits": asdict(limits), **request})
                if not pending:
                    return
                answer = self._receive(limits.seconds + GRACE_SECONDS)
                if answer.get("id") in pending:  # else: left over from an abandoned map
                    yield pending.pop(answer["id"]), answer

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise self._dead() from error

    def _receive(self, seconds: float) -> dict[str, Any]:
        self._channel.settimeout(seconds)
        while b"\n" not in self._received:
            try:
                data = self._channel.recv(1 << 18)
            except TimeoutError as error:
                self.close()
                raise WorkerError(
                    f"The child of SGLang {self.capsule.release} did not answer within "
                    f"{seconds:.0f} s and was stopped; run the launch again."
                ) from error
            except OSError as error:
                raise self._dead() from error
            if not data:
                raise self._dead()
            self._received += data
        line, _, rest = bytes(self._received).partition(b"\n")
        self._received = bytearray(rest)
        return json.loads(line)

    def _dead(self) -> WorkerError:
        tail = (
            self._log.read_text("utf-8", "replace")[-TAIL_CHARACTERS:] if self._log.exists() else ""
        )
        self.close()
        return WorkerError(
            f"The child of SGLang {self.capsule.release} died; run the launch again. "
            f"The last it printed:\n{tail or '(nothing)'}"
        )

    @property
    def alive(self) -> bool:
        """Whether the child can take another launch."""
        return not self._closed and self._process.poll() is None

    def close(self) -> None:
        """Stop the child and remove its scratch folder. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._channel.close()  # the server ends, and with it every fork
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
