"""Proof that the checks can fail: faults people have reported, injected one at a time.

Each fault replaces one step of the healthy pipeline. All 32 checks then run over the broken
pipeline; at least one must notice, and none may fire on the healthy one. A check that reads no
field the fault replaces cannot answer otherwise than on the healthy pipeline, so its answer is
taken from there: which fields a check reads is recorded while it runs, not declared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from casebook.dflash import faults_form, faults_run, faults_served
from casebook.dflash.bench import Bench, Pipeline
from casebook.dflash.checks import CHECKS, run_on_bench
from casebook.dflash.checks_base import Check, Finding, State
from casebook.dflash.faults_base import Fault

FAULTS: list[Fault] = [*faults_form.FAULTS, *faults_run.FAULTS, *faults_served.FAULTS]


class _Watched(Pipeline):
    """A pipeline that remembers which of its fields were read."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if not name.startswith("_"):
            super().__getattribute__("_seen").add(name)
        return value

    @classmethod
    def of(cls, pipeline: Pipeline) -> _Watched:
        """The same pipeline, watched."""
        made = cls.__new__(cls)
        object.__setattr__(made, "_seen", set())
        for f in fields(Pipeline):
            object.__setattr__(made, f.name, getattr(pipeline, f.name))
        object.__getattribute__(made, "_seen").clear()
        return made

    def read(self) -> set[str]:
        """The fields that were read."""
        return set(object.__getattribute__(self, "_seen")) - {"read", "patch"}


@dataclass(frozen=True)
class Proof:
    """What every check said of every pipeline; the first pipeline is ``healthy``."""

    findings: dict[str, dict[int, Finding]]
    """Pipeline, check number, finding."""
    sources: dict[str, str]
    """Where each fault was seen."""

    def table(self) -> pd.DataFrame:
        """Pipelines by checks: ``pass``, ``fail`` or ``not applicable``."""
        return pd.DataFrame(
            {name: {n: str(f.state) for n, f in row.items()} for name, row in self.findings.items()}
        ).T

    def failures(self) -> pd.DataFrame:
        """Every failure with its evidence, one a row."""
        rows = [
            (name, n, f.detail, self.sources.get(name, ""))
            for name, row in self.findings.items()
            for n, f in row.items()
            if f.state is State.FAIL
        ]
        return pd.DataFrame(rows, columns=["fault", "check", "detail", "source"])

    def overfitted(self) -> pd.DataFrame:
        """Training accuracy and served acceptance length, of the healthy pipeline and of every fault
        that reaches training, export or serving (the others are served as the healthy one)."""
        sound = self.findings["healthy"][29]
        rows = {
            name: dict(row[29].figures)
            for name, row in self.findings.items()
            if row[29].figures and (name == "healthy" or row[29] is not sound)
        }
        return pd.DataFrame(rows).T

    def unnoticed(self) -> list[str]:
        """Faults that no check noticed."""
        table = self.table().drop(index="healthy")
        return table.index[~(table == "fail").any(axis=1)].tolist()

    def unproven(self) -> list[int]:
        """Checks that no fault made fail."""
        table = self.table().drop(index="healthy")
        return [int(c) for c in table if not (table[c] == "fail").any()]


def prove(scratch: Path, faults: Iterable[Fault] | None = None, progress: bool = True) -> Proof:
    """Run every fault (default: all) against every check; ``scratch`` takes the exported files."""
    chosen = list(FAULTS if faults is None else faults)
    shared: dict[Any, Any] = {}
    sound = Pipeline()
    known: dict[int, tuple[Finding, set[str]]] = {}
    with tqdm(total=len(chosen) + 1, desc="faults", unit="fault", disable=not progress) as bar:
        for check in CHECKS:
            watched = _Watched.of(sound)
            found = run_on_bench(check, Bench(watched, scratch / f"healthy-{check.number}", shared))
            known[check.number] = (found, watched.read())
        rows = {"healthy": {n: f for n, (f, _) in known.items()}}
        bar.update()
        for number, fault in enumerate(chosen):
            rows[fault.name] = _row(fault, sound, known, scratch / f"fault-{number}", shared)
            bar.update()
    return Proof(rows, {f.name: f.source for f in chosen})


def _row(
    fault: Fault,
    sound: Pipeline,
    known: dict[int, tuple[Finding, set[str]]],
    scratch: Path,
    shared: dict[Any, Any],
) -> dict[int, Finding]:
    """All checks over one broken pipeline; answers that cannot differ are the healthy one's."""
    broken = fault.change(sound)
    changed = {
        f.name for f in fields(Pipeline) if getattr(broken, f.name) != getattr(sound, f.name)
    }
    bench = Bench(broken, scratch, shared)
    return {
        c.number: run_on_bench(c, bench) if _concerned(c, changed, known) else known[c.number][0]
        for c in CHECKS
    }


def _concerned(check: Check, changed: set[str], known: dict[int, tuple[Finding, set[str]]]) -> bool:
    return "patch" in changed or bool(changed & known[check.number][1])


__all__ = ["FAULTS", "Fault", "Proof", "prove"]
