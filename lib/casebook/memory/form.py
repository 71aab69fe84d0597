"""A form to plan launches in a live notebook; a static ledger where nobody can press a button."""

from __future__ import annotations

from html import escape
from typing import Any

from casebook.catalog.gpus import load_gpus
from casebook.catalog.releases import load_releases
from casebook.forms import Field, form
from casebook.launch import Launch
from casebook.memory.plan import MemoryPlan, plan


def ledger_html(made: MemoryPlan) -> str:
    """What becomes of a launch, its limits and its ledger, as HTML."""
    table = made.table().drop(columns="bytes").to_html(index=False, border=0, escape=True)
    figures = {
        "tokens": made.tokens,
        "state slots": made.slots,
        "slots per request": made.slots_per_request,
        "requests": made.requests,
        "requests asked for": made.requested,
    }
    told = ", ".join(f"{name} {value:,}" for name, value in figures.items() if value is not None)
    bound = f" Requests are bounded by <code>{escape(made.limit)}</code>." if made.limit else ""
    notes = "".join(f"<p><em>{escape(note)}</em></p>" for note in made.notes)
    return (
        f"<p><strong>{escape(made.verdict)}</strong>: {escape(made.reason)}</p>"
        f"<p>{escape(told)}.{bound}</p>{table}{notes}"
    )


def answer(launch: str, release: str, gpu: str) -> str:
    """The ledger of a launch as HTML."""
    return ledger_html(plan(Launch.of(launch), gpu=gpu, release=release))


def plan_form(launch: Launch, *, release: str, gpu: str, live: bool | None = None) -> Any:
    """A form with the launch, a release and a GPU; ``live`` defaults to whether someone can use it."""
    fields = [
        Field("launch", launch.lines(), lines=9),
        Field("release", release, [r.version for r in sorted(load_releases().values())]),
        Field("gpu", gpu, list(load_gpus())),
    ]
    return form(fields, answer, button="Plan", waiting="SGLang is sizing its pools …", live=live)
