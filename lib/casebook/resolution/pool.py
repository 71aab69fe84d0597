"""The warm children of this process: one per capsule and device, started on first use.

SGLang reads some environment variables while it is imported. A launch that gives one of those gets a
child of its own, started with it, so that a warm child answers exactly as a fresh one would.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from casebook.capsule import Capsule
from casebook.catalog.hub import hub_for_catalog
from casebook.sandbox import Worker

MAX_WORKERS = 8  # each holds about 500 MB; no more threads than that may ask at a time
PLAIN = ("--model-path", "Qwen/Qwen3-8B")
"""A launch that asks for nothing special: what a child is warmed with whose own first one is refused."""
_lock = threading.Lock()
_workers: dict[str, Worker] = {}
_starting: dict[
    str, threading.Lock
] = {}  # so that two children start at a time, but not the same one


def worker(
    capsule: Capsule,
    device: Mapping[str, Any],
    env: Mapping[str, str],
    warm_with: Sequence[str] = (),
    sizes: bool = False,
) -> Worker:
    """A live child for ``capsule`` on ``device`` that is right for a launch with ``env``.

    ``warm_with`` is the argv of the launch at hand: what it makes SGLang import is imported once. The
    first launch is often one that is refused early; PLAIN then makes the child as quick as others.
    ``sizes`` asks for a child that is ready to size memory: it holds more of SGLang.
    """
    plain = _ensure(capsule, device, {}, warm_with, sizes)
    at_import = plain.ready["environment_read_at_import"]
    special = {k: v for k, v in env.items() if k in at_import and at_import[k] != v}
    return _ensure(capsule, device, special, warm_with, sizes) if special else plain


def _ensure(
    capsule: Capsule,
    device: Mapping[str, Any],
    env: Mapping[str, str],
    warm_with: Sequence[str],
    sizes: bool,
) -> Worker:
    key = json.dumps(
        [str(capsule.python), str(capsule.site), device, env, os.getpid(), sizes], sort_keys=True
    )
    with _lock:
        starting = _starting.setdefault(key, threading.Lock())
    with starting:
        dropped = []
        with _lock:
            found = _workers.pop(key, None)
            if found is not None and found.alive:
                _workers[key] = found  # last: most recently used
                return found
            while len(_workers) >= MAX_WORKERS:  # the least recently used goes
                dropped.append(_workers.pop(next(iter(_workers))))
        for old in dropped:
            old.close()
        warmup = [list(warm_with), list(PLAIN)] if warm_with else []
        found = Worker(capsule, dict(device), hub_for_catalog(), env, warmup, sizes)
        with _lock:
            _workers[key] = found
        return found


def close_all() -> None:
    """Stop every warm child of this process."""
    with _lock:
        while _workers:
            _workers.popitem()[1].close()


atexit.register(close_all)
