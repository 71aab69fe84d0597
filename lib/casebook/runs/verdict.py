"""The last word of a notebook: PASS, FAIL or INCONCLUSIVE, shown to the reader and kept as data.

FAIL means that the notebook's own check failed. A notebook that sets out to show that a launch is
rejected, and shows it, passes.

The fields are those of a good incident report: what was concluded, from which evidence, what is
ruled out, and what to do next.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from casebook.runs.files import write_json

FILE_VARIABLE = "CASEBOOK_VERDICT_FILE"
# Set where a notebook is run by a tool that knows no verdicts (nbmake), so that a FAIL is an error.
STRICT_VARIABLE = "CASEBOOK_VERDICT_STRICT"


class VerdictState(StrEnum):
    """What a notebook can conclude about its own question."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


_COLOURS = {
    VerdictState.PASS: "#1a7f45",
    VerdictState.FAIL: "#b42318",
    VerdictState.INCONCLUSIVE: "#8a5a00",
}
_MEANING = {
    VerdictState.PASS: "The check passed.",
    VerdictState.FAIL: "The check failed.",
    VerdictState.INCONCLUSIVE: "The evidence does not decide.",
}


@dataclass(frozen=True)
class Verdict:
    """A notebook's conclusion. In a notebook it shows itself as a callout."""

    state: VerdictState
    headline: str
    evidence: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    next_step: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data, the form of the verdict file."""
        return asdict(self) | {"state": self.state.value}

    @classmethod
    def from_json(cls, data: Any) -> Verdict:
        """The verdict that :meth:`to_json` wrote; ValueError if ``data`` is not one."""
        try:
            return cls(
                VerdictState(data["state"]),
                str(data["headline"]),
                *(tuple(map(str, data[k])) for k in ("evidence", "ruled_out", "next_step")),
            )
        except (KeyError, TypeError) as error:
            raise ValueError("not a verdict") from error

    def __str__(self) -> str:
        lines = [f"{self.state}: {self.headline}"]
        for name, items in self._parts():
            lines += [f"{name}:", *(f"  - {item}" for item in items)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        colour = _COLOURS[self.state]
        # The page's own colours, and white on a dark badge: it must read on a light and a dark page.
        rows = [
            f'<div style="border:1px solid {colour};border-left-width:6px;border-radius:6px;'
            'padding:.7em 1em;margin:.6em 0">',
            f'<p style="margin:0;font-size:1.1em"><strong style="color:#fff;'
            f'background:{colour};border-radius:4px;padding:.1em .5em">{self.state}</strong> '
            f"&nbsp;{rich_text(self.headline)}</p>",
        ]
        for name, items in self._parts():
            listed = "".join(f"<li>{rich_text(item)}</li>" for item in items)
            rows.append(
                f'<p style="margin:.7em 0 0"><strong>{name}</strong></p>'
                f'<ul style="margin:.1em 0 0 1.2em;padding:0">{listed}</ul>'
            )
        return "".join([*rows, "</div>"])

    def _parts(self) -> list[tuple[str, tuple[str, ...]]]:
        parts = [
            ("Evidence", self.evidence),
            ("Ruled out", self.ruled_out),
            ("Next step", self.next_step),
        ]
        return [(name, items) for name, items in parts if items]


def record(
    state: VerdictState | str,
    evidence: str | Sequence[str] = (),
    ruled_out: str | Sequence[str] = (),
    next_step: str | Sequence[str] = (),
    headline: str = "",
) -> Verdict:
    """Conclude the notebook; make the call the last line of its last cell, so that it shows.

    In a headless run the verdict is also written, as JSON, to the file the runner asked for. Of
    several calls in one notebook the last counts. Text in `backquotes` shows as code.
    """
    try:
        found = VerdictState(state)
    except ValueError:
        raise ValueError(f"A verdict is {', '.join(VerdictState)}, not {state!r}.") from None
    verdict = Verdict(
        found,
        headline or _MEANING[found],
        _items(evidence),
        _items(ruled_out),
        _items(next_step),
    )
    if target := os.environ.get(FILE_VARIABLE):
        write_json(Path(target), verdict.to_json())
    if found is VerdictState.FAIL and os.environ.get(STRICT_VARIABLE):
        raise AssertionError(str(verdict))
    return verdict


def rich_text(text: str) -> str:
    """``text`` escaped for HTML, with `backquoted` pieces as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _items(value: str | Sequence[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) and value else tuple(map(str, value))
