"""A form in a live notebook around one pure function; its answer as it stands where nobody can press.

Widgets are not kept reliably in headless runs and exports, so a form never holds logic of its own: it
calls ``answer`` with the values of its fields and shows the HTML that comes back.
"""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from casebook.errors import CasebookError
from casebook.runs.verdict import FILE_VARIABLE

# Set by a Jupyter server in the kernels of its sessions; our runner sets FILE_VARIABLE in headless ones.
_SESSION = "JPY_SESSION_NAME"


@dataclass(frozen=True)
class Field:
    """One field of a form: the parameter of ``answer`` that it sets, and its first value."""

    name: str
    value: str | int | float | bool
    choices: Sequence[Any] = ()
    """If any, one of these is chosen."""
    lines: int = 1
    """Of a text; more than one make a box over the whole width."""


class StaticHtml:
    """HTML that shows itself in a notebook and in its export."""

    def __init__(self, text: str) -> None:
        self.text = text

    def _repr_html_(self) -> str:
        return self.text


def form(
    fields: Sequence[Field],
    answer: Callable[..., str],
    *,
    button: str = "Ask",
    waiting: str = "Asking SGLang …",
    live: bool | None = None,
) -> Any:
    """A form whose button shows ``answer(name=value, ...)``; headless, the answer to the first values.

    ``answer`` returns HTML. A CasebookError it raises is shown as its sentence. ``live`` defaults to
    whether a person can press the button.
    """
    if live is None:
        live = _SESSION in os.environ and FILE_VARIABLE not in os.environ
    if not live:
        return StaticHtml(_said(answer, {field.name: field.value for field in fields}))
    import ipywidgets as widgets

    controls = {field.name: _control(field) for field in fields}
    press = widgets.Button(description=button, button_style="primary")
    shown = widgets.HTML()

    def ask(_button: Any) -> None:
        press.disabled = True
        shown.value = f"<p>{html.escape(waiting)}</p>"
        try:
            shown.value = _said(answer, {name: c.value for name, c in controls.items()})
        except Exception as error:
            # A callback's traceback goes to the server's log, where nobody looks.
            shown.value = preformatted(f"{type(error).__name__}: {error}")
            raise
        finally:
            press.disabled = False

    press.on_click(ask)
    wide = [controls[field.name] for field in fields if field.lines > 1]
    row = [controls[field.name] for field in fields if field.lines == 1]
    flow = widgets.Layout(flex_flow="row wrap")
    return widgets.VBox([*wide, widgets.HBox([*row, press], layout=flow), shown])


def _said(answer: Callable[..., str], values: dict[str, Any]) -> str:
    try:
        return answer(**values)
    except CasebookError as error:
        return preformatted(str(error))


def preformatted(text: str) -> str:
    """Plain text as a block that wraps."""
    return f'<pre style="white-space:pre-wrap">{html.escape(text)}</pre>'


def _control(field: Field) -> Any:
    import ipywidgets as widgets

    if field.choices:
        return widgets.Dropdown(
            options=list(field.choices), value=field.value, description=field.name
        )
    if field.lines > 1:
        layout = {"width": "100%", "height": f"{field.lines * 1.3:.1f}em"}
        return widgets.Textarea(value=str(field.value), layout=layout)
    kinds = {bool: widgets.Checkbox, int: widgets.IntText, float: widgets.FloatText}
    kind = kinds.get(type(field.value), widgets.Text)
    return kind(value=field.value, description=field.name)
