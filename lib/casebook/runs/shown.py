"""What the pages say of a run and of a case: plain values, made from the files in a results folder.

Runs come from ``records/*.json``. Cases come from ``cases.json``, which ``casebook case run --json`` writes:
a list of ``{"name", "title", "source", "cause", "mend", "cells": [{"release", "state", "detail"}]}``, which
may also say what was ``expected``, what ``happened``, the ``launch``, the ``gpu``, a ``note``, and for each
cell the ``trail`` behind it and whether it is ``as_stated`` in the case's file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casebook.errors import RunError
from casebook.runs.files import read_json
from casebook.runs.outcome import RECORD_FORMAT, State
from casebook.runs.spec import RunSpec, repo_root

CASES_FILE = "cases.json"
_CASE_PARTS = {
    "expected": "Expected",
    "happened": "What happened",
    "cause": "Cause",
    "mend": "Mend",
    "note": "Note",
}
# States of a case on a release: red is what still goes wrong, green what no longer does.
_CASE_TONES = {"reproduces": "bad", "mended": "good", "not applicable": "meta"}


@dataclass(frozen=True)
class ShownRun:
    """One run, as its record tells it."""

    key: str
    slug: str
    name: str
    title: str
    notebook: str
    parameters: tuple[tuple[str, str], ...]
    state: State
    seconds: float
    error: str
    verdict: dict[str, Any]
    started: str
    attempts: int
    outdated: bool
    """The same run would have another key today, so it would run again."""
    has_notebook: bool
    has_log: bool
    has_page: bool = False

    @property
    def stem(self) -> str:
        """The notebook's name."""
        return Path(self.notebook).stem

    @property
    def headline(self) -> str:
        """What became of the run: the notebook's verdict if it came to one, else the run's state."""
        if self.state.came_to_its_end and self.verdict:
            return str(self.verdict["state"])
        return self.state.words

    @property
    def sentence(self) -> str:
        """Why, in one sentence; empty if there is nothing to say."""
        return self.error or str(self.verdict.get("headline", ""))

    @property
    def tone(self) -> str:
        """good, bad or open."""
        if self.state is not State.OK:
            return "bad"
        return "open" if self.verdict.get("state") == "INCONCLUSIVE" else "good"

    @property
    def parts(self) -> list[tuple[str, list[str]]]:
        """What the verdict rests on, by heading."""
        headings = {"evidence": "Evidence", "ruled_out": "Ruled out", "next_step": "Next step"}
        found = [(words, list(self.verdict.get(name, ()))) for name, words in headings.items()]
        return [(words, items) for words, items in found if items]

    @property
    def when(self) -> str:
        """How long it took and when it began."""
        took = f"{self.seconds:.1f} s"
        return f"{took}, {self.started[:16].replace('T', ' ')} UTC" if self.started else took


@dataclass(frozen=True)
class ShownCell:
    """A case on one release."""

    release: str
    state: str
    detail: str
    trail: str = ""
    as_stated: bool = True

    @property
    def tone(self) -> str:
        """The class of its colour."""
        return _CASE_TONES.get(self.state, "open")


@dataclass(frozen=True)
class ShownCase:
    """A case and what it did on each release."""

    name: str
    title: str
    source: str
    gpu: str
    launch: str
    parts: tuple[tuple[str, str], ...]
    """Its text by heading, as far as there is any."""
    cells: tuple[ShownCell, ...]

    @property
    def slug(self) -> str:
        """Its name in a file name."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name).strip("-.") or "case"

    @property
    def link(self) -> str:
        """The source, if it is an address that a reader may follow."""
        return self.source if re.match(r"https?://", self.source) else ""

    @property
    def states(self) -> list[str]:
        """All the states it is in."""
        return sorted({cell.state for cell in self.cells})

    def on(self, release: str) -> ShownCell | None:
        """What it did on a release."""
        return next((cell for cell in self.cells if cell.release == release), None)


def shown_runs(out: Path) -> list[ShownRun]:
    """The newest run of each notebook, name and parameters that ``out`` holds, in their order."""
    newest: dict[tuple[Any, ...], ShownRun] = {}
    for run in _runs(out):
        same = (run.notebook, run.name, run.parameters)
        if same not in newest or newest[same].started <= run.started:
            newest[same] = run
    return [newest[same] for same in sorted(newest)]


def shown_cases(out: Path) -> list[ShownCase]:
    """The cases in ``cases.json``; a RunError if the file is there and is not of that form."""
    if not (out / CASES_FILE).is_file():
        return []
    try:
        cases = read_json(out / CASES_FILE)
        if not isinstance(cases, list):
            raise TypeError
        return [_case(each) for each in cases]
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{CASES_FILE} in {str(out)!r} is not a list of cases; make it again with "
            "'casebook case run --json', or remove it."
        ) from error


def _case(data: Any) -> ShownCase:
    return ShownCase(
        name=str(data["name"]),
        title=str(data["title"]),
        source=str(data.get("source") or ""),
        gpu=str(data.get("gpu") or ""),
        launch=str(data.get("launch") or ""),
        parts=tuple((words, str(data[n])) for n, words in _CASE_PARTS.items() if data.get(n)),
        cells=tuple(
            ShownCell(
                str(cell["release"]),
                str(cell["state"]),
                str(cell.get("detail") or ""),
                str(cell.get("trail") or ""),
                bool(cell.get("as_stated", True)),
            )
            for cell in data["cells"]
        ),
    )


def _runs(out: Path) -> Iterator[ShownRun]:
    for path in sorted((out / "records").glob("*.json")):
        record = read_json(path)
        try:
            if record["format"] != RECORD_FORMAT:
                continue
            run = ShownRun(
                key=record["key"],
                slug=record["slug"],
                name=record["name"],
                title=record["title"],
                notebook=record["notebook"],
                parameters=tuple((n, _short(v)) for n, v in record["parameters"].items()),
                state=State(record["state"]),
                seconds=record["seconds"],
                error=record["error"],
                verdict=record["verdict"] or {},
                started=record["started"],
                attempts=record["attempts"],
                outdated=_key_now(record) != record["key"],
                has_notebook=(out / "notebooks" / f"{record['slug']}.ipynb").is_file(),
                has_log=(out / "logs" / f"{record['slug']}.log").is_file(),
            )
        except (KeyError, TypeError, ValueError):
            continue  # a damaged record is no record: the next batch makes it again
        yield run


def _key_now(record: dict[str, Any]) -> str:
    name = record["name"]
    try:
        return RunSpec(repo_root() / record["notebook"], record["parameters"], name).key
    except RunError:
        return ""


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
