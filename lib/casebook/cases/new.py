"""Write a case file from a launch: what SGLang does with it now becomes the statements."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from casebook.cases.load import read_case
from casebook.cases.model import SCHEMA, Case
from casebook.errors import CaseError
from casebook.launch import Redactor
from casebook.resolution.model import OutcomeKind, Verdict
from casebook.resolution.trail import Trail

_WRONG = (Verdict.OVERRIDDEN_SILENTLY, Verdict.OVERRIDDEN, Verdict.LOST)
_UNKNOWN = "Not known yet."


def statements_of(trail: Trail, arguments: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The statements that hold for a trail: on ``arguments``, or else on what went wrong in it."""
    outcome = trail.outcome
    if arguments:
        return [_argument(trail, name) for name in arguments]
    if outcome.failure is not None:
        first = outcome.failure.message.strip().partition("\n")[0]
        return [{"kind": "error", "type": outcome.failure.type, "begins": first}]
    if outcome.kind is OutcomeKind.REFUSED:
        # Up to the first full stop: what follows is casebook's advice.
        said = outcome.sentence.removeprefix("argparse refuses the words: ").partition(". ")[0]
        return [{"kind": "refused", "says": said.rstrip(".")}]
    wrong = [a.field for a in trail.interesting() if a.verdict in _WRONG]
    return [_argument(trail, name) for name in wrong] or [{"kind": "starts"}]


def _argument(trail: Trail, name: str) -> dict[str, Any]:
    found = trail[name]
    statement: dict[str, Any] = {"kind": "argument", "argument": found.field}
    if found.final is None:
        statement["ends_unset"] = True
    elif isinstance(found.final, bool | int | float | str):
        statement["ends_as"] = found.final
    return {**statement, "verdict": [str(found.verdict)]}


def write_case(
    path: Path, trail: Trail, gpu: str, texts: dict[str, str], arguments: Iterable[str] = ()
) -> Case:
    """Write a case of ``trail`` to ``path`` and read it back. Raises CaseError if the file is there.

    ``texts`` gives title, source, expected, happened, cause, mend and model; what is missing is said
    to be not known yet. Secrets of the launch do not go into the file.
    """
    if path.exists():
        raise CaseError(f"{path} is there already; choose another name or remove it.")
    launch = trail.launch
    redact = Redactor.of(launch)
    env = {name: redact.env(name, value) for name, value in launch.env.items()}
    document = tomlkit.document()
    facts = {
        "schema": SCHEMA,
        "title": texts.get("title") or trail.outcome.sentence,
        "source": texts.get("source") or "first-hand",
        "reported": f"{trail.release}, {gpu}",
        "expected": texts.get("expected") or "The launch does what its words say.",
        "happened": texts.get("happened") or trail.outcome.sentence,
        "cause": texts.get("cause") or _UNKNOWN,
        "mend": texts.get("mend") or _UNKNOWN,
        "gpu": gpu,
        **({"model": texts["model"]} if texts.get("model") else {}),
        "seen_in": f"=={trail.release}",
    }
    for key, value in facts.items():
        document.add(key, value)
    table = tomlkit.table()
    table.add("command", _command(trail))
    if env:
        inline = tomlkit.inline_table()
        inline.update(env)
        table.add("env", inline)
    document.add("launch", table)
    faults = tomlkit.aot()
    for statement in statements_of(trail, tuple(arguments)):
        one = tomlkit.table()
        for key, value in statement.items():
            one.add(key, value)
        faults.append(one)
    document.add("fault", faults)
    path.parent.mkdir(parents=True, exist_ok=True)
    # What editors take the schema from; it lies beside the cases of data/cases.
    head = "#:schema ./schema.json\n" if (path.parent / "schema.json").exists() else ""
    path.write_text(head + tomlkit.dumps(document), encoding="utf-8")
    return read_case(path)


def _command(trail: Trail) -> str:
    launch = trail.launch
    return f"{launch.entry} {shlex.join(Redactor.of(launch).words(launch.argv))}"
