"""The batch for other programs: a table as CSV, and JUnit's XML for a CI server."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import casebook
from casebook.runs.files import write_text
from casebook.runs.outcome import RunResult, State

_COLUMNS = ("name", "notebook", "state", "verdict", "headline", "error", "seconds", "attempts")
_LAST = ("started", "output", "key")
# XML 1.0 has no place for these, escaped or not.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_csv(results: Sequence[RunResult], path: Path) -> None:
    """One row a run; each parameter that any run was given is a column ``parameter NAME``."""
    names = sorted({name for r in results for name in r.spec.parameters})
    text = io.StringIO()
    writer = csv.DictWriter(
        text, [*_COLUMNS, *map(_column, names), *_LAST], restval="", lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(map(_row, results))
    write_text(path, text.getvalue())


def _column(name: str) -> str:
    return f"parameter {name}"


def _row(result: RunResult) -> dict[str, Any]:
    verdict = result.verdict or {}
    record = result.to_json()
    row = {name: record[name] for name in (*_COLUMNS, *_LAST) if name in record}
    row |= {"verdict": verdict.get("state", ""), "headline": verdict.get("headline", "")}
    row |= {
        _column(name): value if isinstance(value, str) else json.dumps(value)
        for name, value in result.spec.parameters.items()
    }
    return row


def write_junit(results: Sequence[RunResult], path: Path) -> None:
    """A test case a run: a failed check or cell is a failure, failed surroundings are an error."""
    from junitparser import Error, Failure, JUnitXml, TestCase, TestSuite

    suite = TestSuite(f"casebook {casebook.__version__}")
    for result in results:
        case = TestCase(
            _xml(f"{result.spec.label} {result.spec.given}".strip()),
            classname=result.spec.notebook.stem,
            time=round(result.seconds, 3),
        )
        if result.state is not State.OK:
            kind = Failure if result.state.exit_code == 1 else Error
            case.result = [kind(_xml(result.error), result.state.value)]
        if result.verdict:
            case.system_out = _xml(json.dumps(result.verdict, indent=1, ensure_ascii=False))
        suite.add_testcase(case)
    xml = JUnitXml("casebook")
    xml.add_testsuite(suite)
    write_text(path, xml.tostring().decode())


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
