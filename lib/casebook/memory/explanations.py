"""Why a measured figure is not as planned: what was found by looking (``data/measurements/explanations.toml``)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path

from casebook.errors import DataError
from casebook.paths import data_dir


def explanations() -> Mapping[tuple[str, str], Mapping[str, str]]:
    """What was found by looking at the figures that are off: ``(row, check) -> component -> why``."""
    path = data_dir() / "measurements/explanations.toml"
    try:
        return _explanations(path, path.stat().st_mtime_ns)
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise DataError(f"{path} cannot be read ({error}); restore data/.") from error


@functools.lru_cache(maxsize=2)
def _explanations(path: Path, stamp: int) -> Mapping[tuple[str, str], Mapping[str, str]]:  # noqa: ARG001
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("explanation", [])
    found: dict[tuple[str, str], dict[str, str]] = {}
    for entry in entries:
        for name in entry["components"]:
            found.setdefault((entry["row"], entry["check"]), {})[name] = entry["why"]
    return found
