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

MAX_WORKERS = 8  # each holds about 500 MB
_lock = threading.Lock()
_workers: dict[str, Worker] = {}


def worker(
    capsule: Capsule,
    device: Mapping[str, Any],
    env: Mapping[str, str],
    warm_with: Sequence[str] = (),
) -> Worker:
    """A live child for ``capsule`` on ``device`` that is right for a launch with ``env``.

    ``warm_with`` is the argv of the launch at hand: what it makes SGLang import is imported once.
    """
    with _lock:
        plain = _ensure(capsule, device, {}, warm_with)
        at_import = plain.ready["environment_read_at_import"]
        special = {k: v for k, v in env.items() if k in at_import and at_import[k] != v}
        return _ensure(capsule, device, special, warm_with) if special else plain


def _ensure(
    capsule: Capsule, device: Mapping[str, Any], env: Mapping[str, str], warm_with: Sequence[str]
) -> Worker:
    key = json.dumps(
        [str(capsule.python), str(capsule.site), device, env, os.getpid()], sort_keys=True
    )
    found = _workers.pop(key, None)
    if found is None or not found.alive:
        while len(_workers) >= MAX_WORKERS:  # the least recently used goes
            _workers.pop(next(iter(_workers))).close()
        warmup = [list(warm_with)] if warm_with else []
        found = Worker(capsule, dict(device), hub_for_catalog(), env=env, warmup=warmup)
    _workers[key] = found  # last: most recently used
    return found


def close_all() -> None:
    """Stop every warm child of this process."""
    with _lock:
        while _workers:
            _workers.popitem()[1].close()


atexit.register(close_all)
