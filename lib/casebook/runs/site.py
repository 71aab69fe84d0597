"""The pages a reader opens: an index of runs and cases, and a page for each.

Made for a room without internet: no script, no font and no style from elsewhere. The pages hold a
policy that forbids any request and any script but the index's own, since outputs quote text from
launch scripts and logs that nobody has vetted.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import casebook
from casebook.runs import cells
from casebook.runs.files import write_text
from casebook.runs.shown import ShownCase, ShownRun, shown_cases, shown_runs
from casebook.runs.verdict import rich_text

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"


def write_site(out: Path) -> Path:
    """Write ``out/index.html`` and a page per run and case found in ``out``; returns the index."""
    runs = [_with_page(run, out) for run in shown_runs(out)]
    cases = shown_cases(out)
    for case in cases:
        write_text(
            out / "cases" / f"{case.slug}.html", _page("case.html.j2", case.title, case=case)
        )
    index = out / "index.html"
    write_text(index, _index(runs, cases))
    return index


def page_path(run: ShownRun, out: Path) -> Path:
    """Where the page of a run stands."""
    return out / "html" / f"{run.slug}.html"


def _with_page(run: ShownRun, out: Path) -> ShownRun:
    """The run with its page written, unless a page of the same record and templates is there."""
    page, stamp = page_path(run, out), _stamp(run)
    if _stamped(page, stamp):
        return replace(run, has_page=True)
    body = cells.html_cells(out / "notebooks" / f"{run.slug}.ipynb") if run.has_notebook else None
    if body is None:
        return run
    failed = cells.FAILED if f'id="{cells.FAILED}"' in body else ""
    text = _page(
        "notebook.html.j2",
        f"{run.title} ({run.name})",
        stamp=stamp,
        run=run,
        cells=body,
        failed=failed,
        highlighting=cells.highlighting(),
    )
    write_text(page, text)
    return replace(run, has_page=True)


def _stamp(run: ShownRun) -> str:
    words = json.dumps(asdict(run), default=str, sort_keys=True) + _templates_digest()
    return hashlib.sha256(words.encode()).hexdigest()[:16]


def _stamped(page: Path, stamp: str) -> bool:
    try:
        with page.open(encoding="utf-8") as file:
            return stamp in file.read(1000)
    except OSError:
        return False


@functools.cache
def _templates_digest() -> str:
    texts = [path.read_text(encoding="utf-8") for path in sorted(cells.TEMPLATES.iterdir())]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _index(runs: Sequence[ShownRun], cases: Sequence[ShownCase]) -> str:
    tones = {run.headline: run.tone for run in runs}
    found = Counter(run.headline for run in runs)
    counts = [(words, n, tones[words]) for words, n in found.most_common()]
    script = (cells.TEMPLATES / "index.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _page(
        "index.html.j2",
        "SGLang Casebook: runs and cases",
        policy=f"{_POLICY}; script-src 'sha256-{digest}'",
        script=script,
        runs=runs,
        cases=cases,
        counts=counts,
        states=[*found, *sorted({state for case in cases for state in case.states} - found.keys())],
        notebooks=list(dict.fromkeys(run.stem for run in runs)),
        releases=_releases(cases),
    )


def _releases(cases: Sequence[ShownCase]) -> list[str]:
    """All releases of the cases' tables, oldest first."""
    from packaging.version import InvalidVersion, Version

    def rank(release: str) -> tuple[bool, Any]:
        try:
            return False, Version(release)
        except InvalidVersion:
            return True, release

    return sorted({cell.release for case in cases for cell in case.cells}, key=rank)


def _page(template: str, title: str, **values: Any) -> str:
    values = {"policy": _POLICY, "stamp": ""} | values
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    found: str = (
        _environment()
        .get_template(template)
        .render(title=title, version=casebook.__version__, written=written, **values)
    )
    return found


@functools.cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    made = Environment(loader=FileSystemLoader(cells.TEMPLATES), autoescape=True)
    made.filters["code"] = lambda text: Markup(rich_text(str(text)))
    return made
