"""The memory plan of a case's launch, as a statement asks for it."""

from __future__ import annotations

from casebook.cases.statements import Plan
from casebook.errors import MemoryPlanError
from casebook.launch import Launch


def planned(launch: Launch, *, release: str, gpu: str, model: str | None) -> Plan:
    """Whether the launch fits, by ``casebook.memory``; a plan that cannot be made says why."""
    from casebook.memory.plan import plan  # brings numpy; few cases need it

    try:
        made = plan(launch, model, gpu, release=release)
    except MemoryPlanError as error:
        return Plan(None, str(error))
    if made.verdict == "refused":
        return Plan(None, f"There is no memory plan: {made.reason}")
    return Plan(made.fits, made.reason)
