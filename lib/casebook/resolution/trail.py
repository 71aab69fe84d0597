"""The trail of one launch: what was typed, what SGLang made of it, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from casebook.errors import UnknownNameError
from casebook.forms import preformatted
from casebook.launch import Launch
from casebook.resolution import page
from casebook.resolution.model import (
    Argument,
    EnvAccess,
    LogLine,
    Outcome,
    Verdict,
    short,
)


class UnknownArgumentError(UnknownNameError):
    """A field or flag that the release does not have."""


@dataclass(frozen=True)
class Why:
    """The story of one argument, for reading: ``print`` it, or let a notebook show it."""

    argument: Argument
    release: str

    def lines(self) -> list[str]:
        """One line per step."""
        arg = self.argument
        given = f"given as `{arg.typed}` ({arg.origin})" if arg.typed else "not given"
        lines = [
            f"{arg.field} {f'({arg.flag}) ' if arg.flag else ''}in SGLang {self.release}: "
            f"{arg.verdict.upper()}",
            f"  {given}; starts as {short(arg.parsed)}",
        ]
        for change in arg.changes:
            lines.append(f"  {short(change.old)} → {short(change.new)}  at {change.where}")
            if change.frame and change.frame.code:
                lines.append(f"      | {change.frame.code}")
            if change.source:
                lines.append(f"      declared by {change.source}")
            if change.message:
                lines.append(
                    f"      log ({change.message.level}): {change.message.message.strip()}"
                )
            elif change.frame:
                lines.append("      no log line comes with it")
        lines.append(f"  ends as {short(arg.final)}. {arg.note}")
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return preformatted(str(self))


@dataclass(frozen=True)
class Trail:
    """Every argument of one launch on one release and GPU, with its verdict."""

    launch: Launch
    release: str
    gpu: str
    model: str
    outcome: Outcome
    arguments: tuple[Argument, ...]
    environment: tuple[EnvAccess, ...]
    log: tuple[LogLine, ...]
    output: str
    """What the launch printed."""
    notes: tuple[str, ...] = ()
    """What a reader must know of how the trail was made (stand-ins, variables left out)."""
    seconds: float = 0.0
    """How long the child took; of no meaning for a real server."""

    @cached_property
    def _by_field(self) -> dict[str, Argument]:
        return {argument.field: argument for argument in self.arguments}

    def __getitem__(self, name: str) -> Argument:
        """The argument of a field or flag (``page_size`` or ``--page-size``)."""
        found = self._by_field.get(name.lstrip("-").replace("-", "_"))
        if found is None:
            found = next((a for a in self.arguments if a.flag == name), None)
        if found is None:
            raise UnknownArgumentError(
                "argument", name, self._by_field, f"SGLang {self.release} has no such argument."
            )
        return found

    def get(self, name: str) -> Argument | None:
        """As indexing, but None for an argument that the release does not have."""
        try:
            return self[name]
        except UnknownArgumentError:
            return None

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def why(self, name: str) -> Why:
        """What happened to one argument, step by step, with lines and messages."""
        return Why(self[name], self.release)

    def interesting(self) -> Iterator[Argument]:
        """Arguments that were typed, lost, blamed or changed, in reading order."""
        chosen = [a for a in self.arguments if a.verdict is not Verdict.DEFAULTED]
        return iter(sorted(chosen, key=lambda a: a.verdict.rank))

    def table(self, everything: bool = False) -> pd.DataFrame:
        """One row per argument, those that need attention first; ``everything`` adds the defaults."""
        chosen = (
            sorted(self.arguments, key=lambda a: a.verdict.rank)
            if everything
            else list(self.interesting())
        )
        rows = [
            {
                "argument": a.field,
                "typed": a.typed or "",
                "parsed": short(a.parsed),
                "final": short(a.final),
                "verdict": str(a.verdict),
                "decided at": a.where,
                "SGLang's message": a.message,
                "note": a.note,
            }
            for a in chosen
        ]
        columns = [
            *("argument", "typed", "parsed", "final", "verdict"),
            *("decided at", "SGLang's message", "note"),
        ]
        return pd.DataFrame(rows, columns=columns)

    def changes_table(self) -> pd.DataFrame:
        """One row per change of an argument, with line, function, source text and message."""
        rows = [
            {
                "argument": a.field,
                "old": short(c.old),
                "new": short(c.new),
                "phase": c.phase,
                "where": str(c.frame or ""),
                "function": c.frame.function if c.frame else "",
                "source line": c.frame.code if c.frame else f"({c.kind})",
                "SGLang's message": c.message.message.strip() if c.message else "",
            }
            for a in self.arguments
            for c in a.changes
        ]
        columns = ["argument", "old", "new", "phase", "where", "function", "source line"]
        return pd.DataFrame(rows, columns=[*columns, "SGLang's message"])

    def environment_table(self) -> pd.DataFrame:
        """One row per environment variable that SGLang read or set, and where."""
        rows = [
            {
                "variable": e.name,
                "operation": e.operation,
                "value": "(absent)" if e.value is None else e.value,
                "given by the launch": e.given,
                "where": e.frame.where,
            }
            for e in self.environment
        ]
        columns = ["variable", "operation", "value", "given by the launch", "where"]
        return pd.DataFrame(rows, columns=columns)

    def as_record(self) -> dict[str, Any]:
        """The trail as JSON: outcome, the arguments that are not plain defaults, environment, log."""
        return {
            "release": self.release,
            "gpu": self.gpu,
            "model": self.model,
            "launch": str(self.launch),
            "outcome": asdict(self.outcome),
            "arguments": [asdict(argument) for argument in self.interesting()],
            "environment": [asdict(access) for access in self.environment],
            "log": [asdict(line) for line in self.log],
            "notes": list(self.notes),
        }

    def count(self) -> dict[Verdict, int]:
        """How many arguments got each verdict."""
        return {v: sum(a.verdict is v for a in self.arguments) for v in Verdict}

    def __str__(self) -> str:
        head = f"SGLang {self.release} on {self.gpu}, {self.model}: {self.outcome.kind}"
        return f"{head}\n{self.outcome.sentence}"

    def __repr__(self) -> str:
        return f"<Trail {self.outcome.kind}: {self.launch} on {self.release}, {self.gpu}>"

    def _repr_html_(self) -> str:
        return page.trail(self)
