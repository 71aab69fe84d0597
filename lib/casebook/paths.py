"""Where casebook finds its data and keeps its cache.

``CASEBOOK_DATA`` and ``CASEBOOK_CACHE`` override both, so that a test or a batch job can use its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def data_dir() -> Path:
    """The ``data/`` folder: ``CASEBOOK_DATA``, or the one beside ``lib/`` in the checkout."""
    override = os.environ.get("CASEBOOK_DATA")
    return Path(override) if override else Path(__file__).resolve().parents[2] / "data"


def cache_dir() -> Path:
    """The cache folder (made on demand): ``CASEBOOK_CACHE``, or the user's cache directory."""
    override = os.environ.get("CASEBOOK_CACHE")
    path = Path(override) if override else platformdirs.user_cache_path("sglang-casebook")
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()
