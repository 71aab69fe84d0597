"""What each fork would do again although its outcome is known: done once, before the forks.

A fork shares its parent's memory until it writes; every page that is written is copied first, and
that is most of a launch's cost.
"""

from __future__ import annotations

import contextlib
import logging
from typing import Any


def remember_cached_loggers() -> None:
    """Let ``logging`` clear the caches of those loggers alone that have something in them.

    SGLang configures logging anew for each launch, and ``logging`` then visits every logger of the
    process, a thousand of them, to clear a cache that is empty in nearly all.
    """
    manager: Any = logging.root.manager
    for logger in [logging.root, *manager.loggerDict.values()]:
        getattr(logger, "_cache", {}).clear()
    filled: list[Any] = []
    original = logging.Logger.isEnabledFor

    def is_enabled_for(self: Any, level: int) -> bool:
        if level not in self._cache:
            filled.append(self)
        return original(self, level)

    def clear_cache(_manager: Any) -> None:
        while filled:
            filled.pop()._cache.clear()

    logging.Logger.isEnabledFor = is_enabled_for  # type: ignore[method-assign,assignment]
    logging.Manager._clear_cache = clear_cache  # type: ignore[attr-defined]


def ready_hub_client() -> None:
    """Give each fork's hub library an HTTP client that was made before: it goes nowhere, offline.

    The library drops its client at a fork and makes a new one before it finds that it is offline.
    """
    with contextlib.suppress(ImportError, AttributeError):  # clients before 1.0 do not use httpx
        from huggingface_hub import set_client_factory
        from huggingface_hub.utils import _http

        client = _http.default_client_factory()
        set_client_factory(lambda: client)
