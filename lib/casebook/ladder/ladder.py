"""intended -> script -> argv -> parsed -> resolved -> logged -> live: where did an argument go wrong?

Every rung is optional: the table shows what there is. The first rung that differs from the one the
argument was meant to have is marked; that is the place to look.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import pandas as pd

from casebook.launch import Launch
from casebook.launch.analysis import Analysis
from casebook.launch.finding import Finding, Severity
from casebook.launch.given import typed_fields
from casebook.launch.live import LiveServer
from casebook.launch.options import Options, options
from casebook.launch.secrets import REDACTED, is_secret_name
from casebook.launch.server_log import ServerLog
from casebook.resolution import Trail
from casebook.resolution.model import short

RUNGS = ("intended", "script", "argv", "parsed", "resolved", "logged", "live")
ABSENT = "—"
UNKNOWN = ""
_TYPED = ("intended", "script", "argv")


@dataclass(frozen=True)
class Row:
    """One argument on every rung there is."""

    field: str
    values: Mapping[str, str]
    """Rung -> the value as text; ``ABSENT`` where the rung is there and does not give it."""
    wrong_at: str
    """The first rung where it went wrong; empty if none."""
    why: str


@dataclass(frozen=True)
class Ladder:
    """The table, and the findings behind it."""

    release: str
    rungs: tuple[str, ...]
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()

    @property
    def broken(self) -> tuple[Row, ...]:
        """Arguments that went wrong somewhere."""
        return tuple(row for row in self.rows if row.wrong_at)

    def row(self, name: str) -> Row | None:
        """The row of a field or flag."""
        wanted = name.lstrip("-").replace("-", "_")
        return next((r for r in self.rows if r.field == wanted), None)

    def table(self) -> pd.DataFrame:
        """One row per argument, those that went wrong first."""
        rows = [
            {
                "argument": r.field,
                **{rung: r.values.get(rung, UNKNOWN) for rung in self.rungs},
                "wrong at": r.wrong_at,
                "why": r.why,
            }
            for r in sorted(self.rows, key=lambda r: (not r.wrong_at,))
        ]
        return pd.DataFrame(rows, columns=["argument", *self.rungs, "wrong at", "why"])

    def answer(self) -> str:
        """The ladder in one sentence."""
        if not self.broken:
            return f"Every argument is the same on every rung there is ({', '.join(self.rungs)})."
        first = min(self.broken, key=lambda r: RUNGS.index(r.wrong_at))
        lost = [r.field for r in self.broken if r.wrong_at == first.wrong_at]
        return (
            f"{len(lost)} argument{'s go' if len(lost) > 1 else ' goes'} wrong at the rung `{first.wrong_at}` "
            f"({', '.join(lost[:8])}): {first.why}"
        )

    def _repr_html_(self) -> str:
        head = "".join(
            f"<th style='text-align:left'>{escape(c)}</th>"
            for c in ("argument", *self.rungs, "why")
        )
        body = []
        for row in sorted(self.rows, key=lambda r: (not r.wrong_at,)):
            cells = [f"<td style='text-align:left'><code>{escape(row.field)}</code></td>"]
            for rung in self.rungs:
                text = escape(row.values.get(rung, UNKNOWN))
                bad = rung == row.wrong_at
                cells.append(
                    f"<td style='text-align:left'>{f'<strong>✗ {text}</strong>' if bad else text}</td>"
                )
            cells.append(f"<td style='text-align:left'>{escape(row.why)}</td>")
            body.append(f"<tr>{''.join(cells)}</tr>")
        return f"<p>{escape(self.answer())}</p><table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def build(
    *,
    release: str = "0.5.11",
    intended: Launch | None = None,
    script: Launch | None = None,
    argv: Launch | None = None,
    trail: Trail | None = None,
    log: ServerLog | None = None,
    live: LiveServer | None = None,
    analysis: Analysis | None = None,
    notes: Iterable[str] = (),
) -> Ladder:
    """The ladder from what there is. ``analysis`` gives the reasons for what is lost in the script."""
    accepts = options(release)
    rungs: dict[str, dict[str, str]] = {}
    for name, launch in (("intended", intended), ("script", script), ("argv", argv)):
        if launch is not None:
            rungs[name] = typed_fields(launch, accepts)
    if trail is not None and trail.arguments:
        started = {a.field: a for a in trail.arguments}
        rungs["parsed"] = {f: _text(f, a.parsed) for f, a in started.items()}
        rungs["resolved"] = {f: _text(f, a.final) for f, a in started.items()}
    for name, source in (("logged", log), ("live", live)):
        if source is not None:
            rungs[name] = {f: _text(f, v) for f, v in source.arguments.items()}
    present = tuple(r for r in RUNGS if r in rungs)
    typed = list(dict.fromkeys(f for r in _TYPED if r in rungs for f in rungs[r]))
    later = [f for f in _differing(rungs) if f not in typed]
    findings = analysis.findings if analysis is not None else ()
    rows = [_row(f, rungs, present, findings, accepts, trail) for f in (*typed, *later)]
    return Ladder(release, present, tuple(rows), findings, tuple(notes))


def _text(name: str, value: Any) -> str:
    if is_secret_name(name) and value:
        return REDACTED
    if isinstance(value, list | tuple):
        return " ".join(str(v) for v in value)
    if isinstance(value, dict) and "$type" not in value:
        return json.dumps(value, sort_keys=True)
    return short(value, 80)


def same(one: str, other: str) -> bool:
    """Whether two rungs say the same, each in its own spelling (``0.80`` and ``0.8``)."""
    if one == other or " ".join(one.split()) == " ".join(other.split()):
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        pass
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return one.strip("'\"").lower() == other.strip("'\"").lower()


def _differing(rungs: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Arguments nobody typed that two of the later rungs disagree on."""
    found: list[str] = []
    pairs = (("resolved", "logged"), ("logged", "live"))
    for one, other in pairs:
        if one in rungs and other in rungs:
            found += [
                f
                for f, v in rungs[one].items()
                if f in rungs[other] and not same(v, rungs[other][f]) and f not in _DRAWN
            ]
    return list(dict.fromkeys(found))


_DRAWN = frozenset({"random_seed", "nccl_port", "port", "dist_init_addr", "model_config", "device"})
"""Chosen anew by each start."""


def _row(
    name: str,
    rungs: Mapping[str, Mapping[str, str]],
    present: tuple[str, ...],
    findings: Iterable[Finding],
    accepts: Options,
    trail: Trail | None,
) -> Row:
    values = {rung: rungs[rung].get(name, ABSENT) for rung in present}
    meant, wrong = None, ""
    for rung in present:
        value = values[rung]
        if meant is None:
            if rung in _TYPED and value == ABSENT:
                continue
            meant = value
            continue
        if not same(value, meant):
            if value == ABSENT and rung not in _TYPED:
                continue  # a release that does not name the argument says nothing of it
            wrong = rung
            break
    return Row(
        name, values, wrong, _why(name, wrong, values, findings, accepts, trail) if wrong else ""
    )


def _why(
    name: str,
    wrong: str,
    values: Mapping[str, str],
    findings: Iterable[Finding],
    accepts: Options,
    trail: Trail | None,
) -> str:
    flags = {o for o, option in accepts.by_name.items() if option.field == name} | {
        f"--{name.replace('_', '-')}"
    }
    if wrong in ("argv", "script"):
        hits = [f for f in findings if f.severity is not Severity.NOTE]
        named = [f for f in hits if flags & set(f.flags)]
        for finding in named or [f for f in hits if f.severity is Severity.ERROR]:
            return f"{finding.place}: {finding.what} [{finding.rule}]"
        return "the copy that is read does not give it; compare it with the script that was meant"
    if wrong in ("parsed", "resolved") and trail is not None:
        argument = trail.get(name)
        if argument is not None:
            return f"{argument.note}{f' ({argument.where})' if argument.where else ''}"
    if wrong == "logged":
        return (
            f"the server that wrote the log has {values['logged']}: another copy of the script ran, or the flag was lost "
            "between the shell and the parser"
        )
    if wrong == "live":
        return f"the running server says {values['live']}: it is not the one of the log, or it was changed after its start"
    return ""
