"""The incident's facts (``data/incident/``): error, script, the search that was made, assumptions."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from casebook.errors import DataError
from casebook.paths import data_dir

Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Search(BaseModel):
    """A text search in one source file, and the line numbers it gave."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Text
    pattern: Text
    lines: tuple[int, ...]


class Assumption(BaseModel):
    """Something taken for true while reading."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Text
    text: Text


class Incident(BaseModel):
    """One incident, as it was reported."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: Text
    release: Text
    gpu: Text
    model: Text
    flag: Text
    value: Text
    source: Text
    failed_launches_before: int
    setting: dict[str, str]
    search: Search
    assumption: tuple[Assumption, ...]
    script: str
    """The launch script's text."""
    error: str
    """The error as it was seen."""

    @property
    def error_type(self) -> str:
        """The exception's name."""
        return self.error.partition(":")[0]

    @property
    def error_message(self) -> str:
        """The error's text without the exception's name."""
        return self.error.partition(":")[2].strip()

    def command(self) -> str:
        """The server's command line in the script, its continuation lines joined."""
        joined = self.script.replace("\\\n", " ")
        for line in joined.splitlines():
            if "sglang" in line and not line.lstrip().startswith("#"):
                return " ".join(line.split())
        raise DataError("The incident's script starts no SGLang server; see data/incident/.")


def load_incident(folder: Path | None = None) -> Incident:
    """Read ``incident.toml`` and the files it names. Raises DataError in one sentence."""
    folder = folder or data_dir() / "incident"
    path = folder / "incident.toml"
    try:
        table = tomllib.loads(path.read_text("utf-8"))
        for name in ("script", "error"):
            table[name] = (folder / table[name]).read_text("utf-8").strip()
        return Incident(**table)
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise DataError(f"The incident's file {path} cannot be used: {error}") from error
