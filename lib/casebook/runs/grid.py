"""Grids of parameters: from ``-p name=value,value`` of a command line, and from a file of runs.

A file of runs is TOML or YAML. Each entry names a notebook, and what varies may stand in a ``grid``::

    [[run]]
    notebook = "02_serverargs_resolution"
    name = "blackwell"                               # optional
    parameters = { gpu = "B200" }                    # the same in each
    grid = { release = ["0.5.11", "0.5.23"] }        # each value in turn

In YAML it is a list of such entries, or a mapping with the list under ``run``.
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casebook.errors import RunError

_OPEN, _CLOSE, _QUOTES = "[{(", "]})", "\"'"
_KEYS = {"notebook", "name", "parameters", "grid"}


@dataclass(frozen=True)
class Entry:
    """One entry of a file of runs."""

    where: str
    """Which entry of which file, for messages."""
    notebook: str
    name: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, list[Any]] = field(default_factory=dict)

    def points(self) -> Iterator[dict[str, Any]]:
        """The parameters of each run."""
        for point in points(self.grid):
            yield self.parameters | point


def points(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Each combination of the values, the last name varying fastest; of no names, one empty one."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def read_assignments(texts: Sequence[str]) -> dict[str, list[str]]:
    """The grid that ``name=value,value`` of a command line mean; values are text still."""
    grid: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.isidentifier():
            raise RunError(f"{text!r} sets no parameter; write NAME=VALUE or NAME=VALUE,VALUE.")
        if name in grid:
            raise RunError(f"Parameter {name!r} is given twice; put its values behind one -p.")
        grid[name] = split_values(values)
    return grid


def split_values(text: str) -> list[str]:
    """The values between commas; a comma in quotes or brackets belongs to its value."""
    found, start, depth, quote = [], 0, 0, ""
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES and (at == start or depth):
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth = max(0, depth - 1)
        elif char == "," and not depth:
            found.append(text[start:at])
            start = at + 1
    return [_unquoted(value.strip()) for value in [*found, text[start:]]]


def read_runs(path: Path) -> list[Entry]:
    """The entries of a file of runs; a RunError says which entry is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text) if path.suffix == ".toml" else _yaml(text)
    except (OSError, ValueError) as error:
        raise RunError(f"{path.name} cannot be read: {error}") from error
    entries = data.get("run", []) if isinstance(data, dict) else data
    listed = entries if isinstance(entries, list) else [entries]
    return [_entry(f"Entry {n} of {path.name}", each) for n, each in enumerate(listed, 1)]


def _entry(where: str, entry: Any) -> Entry:
    if not isinstance(entry, dict) or not isinstance(entry.get("notebook"), str):
        raise RunError(f'{where} must be a table with a notebook, as in notebook = "NAME".')
    if unknown := entry.keys() - _KEYS:
        raise RunError(
            f"{where} has {', '.join(sorted(map(str, unknown)))}; it takes notebook, name, parameters "
            "and grid."
        )
    parameters, grid = entry.get("parameters") or {}, entry.get("grid") or {}
    if not isinstance(parameters, dict):
        raise RunError(f"{where}: parameters must be a table, as in {{ tp = 2 }}.")
    if not isinstance(grid, dict) or not all(isinstance(v, list) and v for v in grid.values()):
        raise RunError(f"{where}: grid must be a table of lists, as in {{ tp = [2, 4] }}.")
    if both := parameters.keys() & grid.keys():
        raise RunError(f"{where} sets {min(both)!r} in parameters and in grid; keep one.")
    return Entry(where, entry["notebook"], str(entry.get("name") or ""), parameters, grid)


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text) or []
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES:
        return text[1:-1]
    return text
