"""Where runs leave what they made: a folder, or an address that papermill's handlers can write.

The same names stand in both: ``records/KEY.json``, ``notebooks/SLUG.ipynb``, ``logs/SLUG.log``. A
worker on another machine may share no folder with the batch; a bucket then carries the files.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casebook.errors import StoreError
from casebook.runs.files import read_json, write_json
from casebook.runs.imports import skip_slow_parser
from casebook.runs.outcome import RunResult
from casebook.runs.spec import RunSpec

_SUFFIXES = [".ipynb", ".json", ".log"]


@dataclass(frozen=True)
class Store:
    """A folder or an address such as ``s3://bucket/prefix``; plain data, so that it can be sent."""

    root: str

    @classmethod
    def of(cls, place: str | Path) -> Store:
        """The store at ``place``; a folder's path is made absolute, as workers have folders of their own."""
        text = str(place)
        return cls(text.rstrip("/") if "://" in text else str(Path(text).resolve()))

    @property
    def folder(self) -> Path | None:
        """The folder, if it is one."""
        return None if "://" in self.root else Path(self.root)

    def record(self, key: str) -> Any:
        """The record under ``key``; None if there is none that can be read."""
        name = f"records/{key}.json"
        if self.folder:
            return read_json(self.folder / name)
        try:
            return json.loads(self._read(name))
        # Each handler has exceptions of its own for a file that is not there.
        except Exception:
            return None

    def keep(self, key: str, record: Any) -> None:
        """Leave plain data under ``key``, for :meth:`record`."""
        name = f"records/{key}.json"
        if self.folder:
            write_json(self.folder / name, record)
        else:
            self._write(name, json.dumps(record, indent=1, ensure_ascii=False))

    def write_record(self, result: RunResult) -> None:
        """Leave the record of a run that has ended; it comes last, so what it names is there."""
        self.keep(result.spec.key, result.to_json())

    def send(self, spec: RunSpec, made: Path) -> None:
        """Copy a run's notebook and log from the folder ``made`` to an address."""
        for name in _names(spec):
            if (made / name).is_file():
                self._write(name, (made / name).read_text(encoding="utf-8", errors="replace"))

    def fetch(self, spec: RunSpec, out: Path) -> None:
        """Copy a run's notebook and log to the folder ``out``, where the pages are made."""
        for name in _names(spec):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            # A run need not have a log, nor a notebook if it never started.
            with contextlib.suppress(Exception):
                (out / name).write_text(self._read(name), encoding="utf-8")

    def _read(self, name: str) -> str:
        text: str = _handlers().read(f"{self.root}/{name}", _SUFFIXES)
        return text

    def _write(self, name: str, text: str) -> None:
        try:
            _handlers().write(text, f"{self.root}/{name}", _SUFFIXES)
        except Exception as error:
            raise StoreError(
                f"{self.root}/{name} could not be written ({type(error).__name__}: {error}); see to the "
                "address, the credentials, and whether papermill's package for it is installed."
            ) from error


def _names(spec: RunSpec) -> tuple[str, str]:
    return f"notebooks/{spec.slug}.ipynb", f"logs/{spec.slug}.log"


def _handlers() -> Any:
    skip_slow_parser()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from papermill.iorw import papermill_io
    return papermill_io
