"""What a release of SGLang makes of a drafter directory, asked of its own DFlash code.

The release's ``srt/models/dflash.py`` is built in a child on recorders (:mod:`served_child`), with
the release's own transformers reading the configuration. So the rope base, the windows and the
tensors that are missing or ignored are SGLang's answers, not a table of ours.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock, Timer
from typing import IO, Any

from packaging.version import Version

from casebook import capsule as capsules
from casebook.dflash.checkpoint import TensorInfo
from casebook.errors import WorkerError

FIRST_RELEASE = "0.5.11"
"""The first release on PyPI with a DFlash worker."""
CHILD = Path(__file__).with_name("served_child.py")
SECONDS = 180


@dataclass(frozen=True)
class Served:
    """One release's reading of one drafter."""

    release: str
    refused: str | None = None
    """Why the release does not load it, or None."""
    block_size: int | None = None
    mask_token_id: int | None = None
    """None: the release adds a new word to the tokenizer."""
    taps: int | None = None
    rope_theta: float | None = None
    rotary_dim: int | None = None
    neox: bool = True
    windows: tuple[int | None, ...] = ()
    """Per layer: tokens a query sees, itself included; None is full attention."""
    causal: tuple[bool, ...] = ()
    missing: tuple[str, ...] = ()
    """Parameters of SGLang's class that no tensor filled."""
    ignored: tuple[str, ...] = ()
    """Tensors of the checkpoint that went nowhere."""


def ask(release: str, config: dict[str, Any], tensors: dict[str, TensorInfo]) -> Served:
    """Ask ``release`` about a ``config.json`` and the tensors' names and shapes.

    Builds the capsule on first use; about five seconds a question, remembered for the session.
    """
    shapes = {name: list(info.shape) for name, info in tensors.items()}
    return _ask(release, json.dumps(config, sort_keys=True), json.dumps(shapes))


@lru_cache(maxsize=512)
def _ask(release: str, config_text: str, shapes_text: str) -> Served:
    if Version(release) < Version(FIRST_RELEASE):
        return Served(
            release, refused=f"SGLang {release} has no DFlash; the first is {FIRST_RELEASE}"
        )
    config = json.loads(config_text)
    config.pop("auto_map", None)  # names Python files of the checkpoint's own; never run here
    with tempfile.TemporaryDirectory(prefix="casebook-") as scratch:
        (Path(scratch) / "config.json").write_text(json.dumps(config), "utf-8")
        answer = _child(release).ask({"directory": scratch, "shapes": json.loads(shapes_text)})
    if "failed" in answer:
        raise WorkerError(
            f"SGLang {release} could not be asked about the drafter: {answer['failed']}."
        )
    return _served(release, answer)


class _Child:
    """One process that has a release's DFlash code imported; asked by one thread at a time."""

    def __init__(self, release: str) -> None:
        self.release, self.lock = release, Lock()
        self.log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the child
        site = capsules.ensure(release).site
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(CHILD), str(site)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | _QUIET,
        )

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            watch = Timer(SECONDS, self.process.kill)
            watch.start()
            try:
                self.process.stdin.write(json.dumps(request) + "\n")
                self.process.stdin.flush()
                line = self.process.stdout.readline()
                return dict(json.loads(line))
            except (OSError, ValueError) as error:
                self.log.seek(0)
                tail = self.log.read()[-300:].strip()
                raise WorkerError(
                    f"The child that asks SGLang {self.release} died or took over {SECONDS} s. {tail}"
                ) from error
            finally:
                watch.cancel()

    def close(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()  # its loop ends
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()


_QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}
_children: dict[str, _Child] = {}


def _child(release: str) -> _Child:
    kept = _children.get(release)
    if kept is None or kept.process.poll() is not None:
        kept = _children[release] = _Child(release)
        atexit.register(kept.close)
    return kept


def _served(release: str, answer: dict[str, Any]) -> Served:
    rope = (answer.get("rope") or [{}])[0]
    layers = answer.get("attention", [])
    sizes = [layer.get("sliding_window_size") for layer in layers]
    return Served(
        release=release,
        refused=answer.get("refused"),
        block_size=answer.get("block_size"),
        mask_token_id=answer.get("mask_token_id"),
        taps=answer.get("taps"),
        rope_theta=rope.get("base"),
        rotary_dim=rope.get("rotary_dim"),
        neox=bool(rope.get("is_neox_style", True)),
        # SGLang counts the tokens before the query; -1 or None is no window.
        windows=tuple(None if s is None or s < 0 else s + 1 for s in sizes),
        causal=tuple("decoder" in str(layer.get("attn_type")) for layer in layers),
        missing=tuple(answer.get("missing", ())),
        ignored=tuple(answer.get("ignored", ())),
    )
