"""A form calls its function with what its fields hold, and shows what comes back."""

from __future__ import annotations

from typing import Any

import ipywidgets
import pytest

from casebook.errors import LaunchError
from casebook.forms import Field, StaticHtml, form

FIELDS = [
    Field("launch", "a\nb", lines=4),
    Field("gpu", "B200", ["B200", "H200"]),
    Field("tp", 2),
    Field("share", 0.8),
    Field("deep", True),
    Field("note", "x"),
]


def answer(**values: Any) -> str:
    if values["tp"] < 1:
        raise LaunchError("A launch needs a GPU, not <none>.")
    if values["tp"] > 8:
        raise ZeroDivisionError("by tp")
    return repr(values)


def _parts(box: Any) -> tuple[dict[str, Any], Any, Any]:
    wide, row, shown = box.children
    *controls, press = row.children
    named = {c.description: c for c in controls}
    return named | {"launch": wide}, press, shown


def test_the_button_asks_with_what_the_fields_hold() -> None:
    controls, press, shown = _parts(form(FIELDS, answer, live=True))
    assert isinstance(controls["gpu"], ipywidgets.Dropdown)
    controls["gpu"].value = "H200"
    controls["tp"].value = 4
    press.click()
    expected = {
        "launch": "a\nb",
        "gpu": "H200",
        "tp": 4,
        "share": 0.8,
        "deep": True,
        "note": "x",
    }
    assert shown.value == repr(expected)
    assert not press.disabled


def test_a_users_mistake_is_its_sentence_and_a_fault_is_named() -> None:
    controls, press, shown = _parts(form(FIELDS, answer, live=True))
    controls["tp"].value = 0
    press.click()
    assert "A launch needs a GPU, not &lt;none&gt;." in shown.value
    controls["tp"].value = 9
    press.click()
    assert "ZeroDivisionError: by tp" in shown.value
    assert not press.disabled


def test_headless_it_is_the_answer_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "02.ipynb")
    monkeypatch.setenv("CASEBOOK_VERDICT_FILE", "v.json")
    made = form(FIELDS, answer)
    assert isinstance(made, StaticHtml)
    assert "'gpu': 'B200'" in made._repr_html_()
