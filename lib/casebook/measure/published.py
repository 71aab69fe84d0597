"""The start-ups that people published (``data/measurements/``), each with its source.

A row is what somebody wrote, not what casebook measured: figures as they were printed, the launch as far
as it was given, and how far the row can be trusted. Its figures are :class:`Reading` objects, as those of
a log are, so that the same comparison serves both; their ``line`` is 0.
"""

from __future__ import annotations

import functools
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from casebook.catalog.gpus import GIB
from casebook.errors import DataError, UnknownNameError
from casebook.measure.model import LOG_STEP, FailureKind, Outcome, Reading
from casebook.paths import data_dir

Kind = Literal["log", "report", "recipe"]


class Published(BaseModel):
    """One published start-up. Figures are per rank."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(min_length=1)
    kind: Kind
    confidence: Literal["high", "medium", "low"]
    source: str = Field(min_length=1)
    date: str = Field(default="", pattern=r"^(\d{4}-\d\d-\d\d)?$")
    release: str | None = None
    """The SGLang release, where the source states one."""
    stated_release: str = ""
    model: str | None = None
    """The checkpoint, by its name in the catalog."""
    shape_of: str | None = None
    """A catalog model with the same layers, where the checkpoint itself is not in the catalog."""
    stated_model: str = ""
    quantization: str = ""
    gpu: str | None = None
    stated_gpu: str = ""
    gpu_inferred: bool = False
    gpus: int | None = Field(default=None, gt=0)
    tp: int | None = Field(default=None, gt=0)
    dp: int | None = Field(default=None, gt=0)
    launch: str = ""
    """The flags that are published, as a command line would hold them."""
    launch_contradicts_log: bool = False
    setting: Mapping[str, str] = {}
    """What else the source says of the launch, in its own words."""
    outcome: Outcome
    failure: FailureKind | None = None
    where: str = ""
    error: str = ""
    notes: str = ""
    lines: tuple[str, ...] = ()
    gib: Mapping[str, float] = {}
    counts: Mapping[str, int] = {}
    rounded: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Published:
        if self.failure is not None and self.outcome != "died":
            raise ValueError("a failure needs the outcome 'died'")
        unknown = set(self.rounded) - {*self.gib, *self.counts}
        if unknown:
            raise ValueError(f"rounded names figures that are not there: {sorted(unknown)}")
        return self

    @property
    def layers_model(self) -> str | None:
        """The catalog model whose layers these are."""
        return self.model or self.shape_of

    @property
    def flags(self) -> tuple[str, ...]:
        """The launch's words."""
        return tuple(shlex.split(self.launch))

    @property
    def figures(self) -> Mapping[str, Reading]:
        """Sizes in bytes and counts, by the names of :attr:`Measurement.figures`."""
        sizes = {
            name: Reading(round(value * GIB), 0, self._step(name, value))
            for name, value in self.gib.items()
        }
        return sizes | {
            name: Reading(value, 0, 10 ** _zeros(value) if name in self.rounded else 0)
            for name, value in self.counts.items()
        }

    def _step(self, name: str, value: float) -> int:
        if name not in self.rounded:
            return LOG_STEP
        decimals = len(f"{value}".partition(".")[2].rstrip("0"))
        return round(GIB / 10**decimals)


def published() -> tuple[Published, ...]:
    """All published start-ups, in the file's order."""
    path = data_dir() / "measurements/published.toml"
    try:
        return _read(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}; restore data/.") from error


def published_start(name: str) -> Published:
    """The published start-up of that id."""
    rows = {row.id: row for row in published()}
    if name not in rows:
        raise UnknownNameError("measurement", name, rows, "`published()` lists them.")
    return rows[name]


def published_table(rows: Iterable[Published] | None = None) -> pd.DataFrame:
    """One row a start-up: what it is, and its figures (bytes, tokens, requests)."""
    chosen = published() if rows is None else tuple(rows)
    records = []
    for row in chosen:
        record: dict[str, Any] = {
            "id": row.id,
            "kind": row.kind,
            "confidence": row.confidence,
            "date": row.date,
            "release": row.release,
            "model": row.layers_model,
            "stated_model": row.stated_model,
            "gpu": row.gpu,
            "stated_gpu": row.stated_gpu,
            "tp": row.tp,
            "outcome": row.outcome,
            "failure": row.failure,
        }
        record |= {name: reading.value for name, reading in row.figures.items()}
        records.append(record | {"source": row.source})
    table = pd.DataFrame(records)
    numbers = [name for name in table if name in _names(chosen) or name == "tp"]
    return table.astype(dict.fromkeys(numbers, "Int64"))


def _names(rows: Iterable[Published]) -> set[str]:
    return {name for row in rows for name in (*row.gib, *row.counts)}


def _zeros(value: int) -> int:
    text = str(abs(value))
    return len(text) - len(text.rstrip("0"))


@functools.lru_cache(maxsize=2)
def _read(path: Path, stamp: int) -> tuple[Published, ...]:  # noqa: ARG001
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path} is not TOML ({error}); correct it.") from error
    rows: list[Published] = []
    for number, record in enumerate(data.get("measurement", []), start=1):
        name = record.get("id", f"number {number}")
        try:
            rows.append(Published(**record))
        except (ValidationError, TypeError) as error:
            first = error.errors()[0] if isinstance(error, ValidationError) else None
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else str(error)
            raise DataError(f"{path}, measurement {name}: {what}; correct it.") from error
    twice = {row.id for row in rows if sum(other.id == row.id for other in rows) > 1}
    if twice:
        raise DataError(f"{path} has the id {min(twice)!r} twice; rename one.")
    return tuple(rows)
