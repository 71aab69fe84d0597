"""A trail as HTML, for a notebook: what needs attention first, the rest folded away.

No colours of text or background are set: the page may be light or dark.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from casebook.resolution.model import Argument, Verdict, short

if TYPE_CHECKING:
    from casebook.resolution.trail import Trail

_STRONG = (Verdict.REJECTED, Verdict.OVERRIDDEN_SILENTLY, Verdict.OVERRIDDEN, Verdict.LOST)
_MARK = {
    Verdict.REJECTED: "✗",
    Verdict.OVERRIDDEN_SILENTLY: "!",
    Verdict.OVERRIDDEN: "!",
    Verdict.LOST: "✗",
    Verdict.HONOURED: "✓",
    Verdict.DERIVED: "·",
    Verdict.DEFAULTED: "·",
}


def trail(found: Trail) -> str:
    """Outcome, launch, the arguments that were typed or blamed, then those SGLang derived."""
    arguments = list(found.interesting())
    derived = [a for a in arguments if a.verdict is Verdict.DERIVED]
    front = [a for a in arguments if a.verdict is not Verdict.DERIVED]
    defaulted = found.count()[Verdict.DEFAULTED]
    parts = [
        f"<p><strong>SGLang {escape(found.release)}</strong> on {escape(found.gpu)}, "
        f"{escape(found.model)}: <strong>{found.outcome.kind.upper()}</strong>. "
        f"{escape(found.outcome.sentence)}</p>",
    ]
    if front:
        parts.append(_table(front))
    if derived:
        parts.append(
            f"<details><summary>{len(derived)} arguments were not given and are derived by SGLang"
            f"</summary>{_table(derived)}</details>"
        )
    if defaulted:
        parts.append(f"<p>{defaulted} further arguments keep the release's defaults.</p>")
    parts += [f"<p><em>{escape(note)}</em></p>" for note in found.notes]
    return "\n".join(parts)


def _table(arguments: Iterable[Argument]) -> str:
    rows = "".join(_row(argument) for argument in arguments)
    heads = "".join(
        f'<th style="text-align:left">{text}</th>'
        for text in ("argument", "verdict", "given or default → final", "decided at")
    )
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _row(argument: Argument) -> str:
    verdict = f"{_MARK[argument.verdict]} {argument.verdict}"
    shown = f"<strong>{verdict}</strong>" if argument.verdict in _STRONG else verdict
    same = repr(argument.parsed) == repr(argument.final)
    value = escape(short(argument.final, 40))
    if not same:
        value = f"{escape(short(argument.parsed, 40))} → {value}"
    message = f"<br><em>{escape(argument.message)}</em>" if argument.message else ""
    cells = (
        f"<code>{escape(argument.field)}</code>",
        shown,
        value,
        f"{escape(argument.where)}{message}",
    )
    return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"
