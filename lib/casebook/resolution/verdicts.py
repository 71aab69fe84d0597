"""Judge each argument: pure functions of what was typed, what changed and how the launch ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from casebook.resolution.guards import Guard
from casebook.resolution.interpret import Typed
from casebook.resolution.model import (
    Argument,
    Change,
    Failure,
    Outcome,
    OutcomeKind,
    Verdict,
    same,
    short,
)


def judge(
    field: str,
    flags: Sequence[str],
    typed: Typed | None,
    parsed: Any,
    changes: Sequence[Change],
    final: Any,
    outcome: Outcome,
    intended: str | None = None,
    guard: Guard | None = None,
) -> Argument:
    """One argument with its verdict.

    ``flags`` are the options that set the field; ``parsed`` its value before resolution; ``intended``
    the words that another launch (the one that was meant) gives for it; ``guard`` tells which
    arguments the check read that ended the launch.
    """
    verdict, note = _verdict(field, flags, typed, parsed, changes, final, outcome, intended)
    if (
        verdict is not Verdict.REJECTED
        and guard is not None
        and _read(guard, field, typed, changes)
    ):
        verdict, note = Verdict.REJECTED, _value_note(guard, typed, parsed, changes, final)
    if typed is not None and typed.times > 1:
        note += f" It was given {typed.times} times; the last one counts."
    if typed is not None and typed.advice:
        note += f" {typed.advice}"
    return Argument(
        field=field,
        flag=flags[0] if flags else "",
        typed=typed.words if typed else None,
        origin=typed.origin if typed else "default",
        parsed=parsed,
        changes=tuple(changes),
        final=final,
        verdict=verdict,
        note=note.strip(),
    )


def _verdict(
    field: str,
    flags: Sequence[str],
    typed: Typed | None,
    parsed: Any,
    changes: Sequence[Change],
    final: Any,
    outcome: Outcome,
    intended: str | None,
) -> tuple[Verdict, str]:
    changed = not same(parsed, final)
    if outcome.failure is not None and blames(outcome.failure, field, flags):
        return Verdict.REJECTED, _blame_note(typed, parsed, changes, final)
    if typed is None and intended is not None:
        return Verdict.LOST, f"`{intended}` was meant, but these words never reached the parser."
    if typed is None:
        if not changed:
            return Verdict.DEFAULTED, "Not given; the release's default stands."
        return Verdict.DERIVED, f"Not given; {_last_rule(changes)}"
    if not changed:
        back = " It was changed on the way and changed back." if changes else ""
        return Verdict.HONOURED, f"Kept as given.{back}"
    by = _last_rule(changes)
    if all(change.message is None for change in changes):
        return Verdict.OVERRIDDEN_SILENTLY, f"You gave {short(parsed)}; {by} No log line says so."
    return Verdict.OVERRIDDEN, f"You gave {short(parsed)}; {by}"


def ignored_config(typed: Typed) -> Argument:
    """The ``--config`` that SGLang's parser takes and nobody reads.

    The file is merged only where ``--config`` stands as a word of its own; then the merger takes the
    words away before they are parsed. What argparse still sees has not been merged.
    """
    return Argument(
        field="config",
        flag="--config",
        typed=typed.words,
        origin=typed.origin,
        parsed=typed.parsed,
        changes=(),
        final=None,
        verdict=Verdict.LOST,
        note=f"`{typed.words}` is accepted and ignored: nothing of the file is used. SGLang looks for "
        "the word `--config` alone; write `--config FILE`, in two words.",
    )


def blames(failure: Failure, field: str, flags: Sequence[str]) -> bool:
    """Whether an error's message names an argument, by flag or by field name."""
    text = failure.message
    if any(_names_flag(text, flag) for flag in flags):
        return True
    # Short field names ('host', 'dtype') are ordinary words; they count only when written as code.
    return "_" in field and re.search(rf"(?<!\w){re.escape(field)}(?!\w)", text) is not None


def _names_flag(text: str, flag: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


def _blame_note(typed: Typed | None, parsed: Any, changes: Sequence[Change], final: Any) -> str:
    if typed is None and changes:
        last = changes[-1]
        return (
            f"The error names a value you did not give: {short(last.old)} became {short(last.new)} "
            f"at {last.where}."
        )
    if typed is None:
        return f"The error names it; you did not give it, {short(final)} is the default."
    if changes:
        return f"The error names it; you gave {short(parsed)}, {_last_rule(changes)}"
    return "The error names it, and the value is the one you gave."


def _read(guard: Guard, field: str, typed: Typed | None, changes: Sequence[Change]) -> bool:
    """Whether the check that ended the launch decided by this argument's value.

    A value that somebody typed counts if any test before the check's line reads it; one that SGLang
    wrote, if the test next to it does; a default is nobody's doing.
    """
    if typed is not None:
        return field in guard.nearest or field in guard.around
    return bool(changes) and field in guard.nearest


def _value_note(
    guard: Guard, typed: Typed | None, parsed: Any, changes: Sequence[Change], final: Any
) -> str:
    check = f"The check at {guard.frame.where} reads it"
    if typed is None:
        last = changes[-1]
        return f"{check}; you did not give it: {short(last.old)} became {short(last.new)} at {last.where}."
    if changes:
        return f"{check}; you gave {short(parsed)}, {_last_rule(changes)}"
    return f"{check}, and the value {short(final)} is the one you gave."


def _last_rule(changes: Sequence[Change]) -> str:
    if not changes:
        return "it changed without a recorded write."
    last = changes[-1]
    steps = " → ".join([short(changes[0].old, 24), *(short(c.new, 24) for c in changes)])
    return f"{steps} at {last.where}."


def outcome_of(
    raw: Mapping[str, Any],
    line: Mapping[str, Any],
    failure: Failure | None,
    advise: Callable[[str], str | None] = lambda _flag: None,
) -> Outcome:
    """The outcome in one kind and one sentence, from the child's raw record.

    ``advise`` tells what to write for a flag that this release does not have, where that is known.
    """
    kind = raw["kind"]
    if kind == "resolved":
        return Outcome(OutcomeKind.STARTS, "Every argument resolves; SGLang would start.")
    if kind == "raised" and failure is None:  # asked for the end alone
        return Outcome(OutcomeKind.REJECTED, f"SGLang raises {raw['type']}: {raw['message']}")
    if kind == "raised" and failure is not None:
        at = f" at {failure.frame.where}" if failure.frame else ""
        # Without a message, the line itself says most: an assert's test.
        code = failure.frame.code if failure.frame else ""
        first = failure.message.strip().splitlines()[0] if failure.message.strip() else code
        return Outcome(
            OutcomeKind.REJECTED,
            f"SGLang raises {failure.type}{at}: {first}{_advice(failure)}",
            failure,
        )
    if kind == "exit" and line.get("refusal"):
        near = tuple((k, tuple(v)) for k, v in line.get("nearest_flags", {}).items())
        return Outcome(OutcomeKind.REFUSED, _refusal(line["refusal"], near, advise), None, near)
    if kind == "exit":
        return Outcome(OutcomeKind.EXITED, f"SGLang ended itself with exit code {raw['code']}.")
    if kind == "timeout":
        return Outcome(
            OutcomeKind.TIMED_OUT,
            f"The resolution ran past its limit of {raw['seconds']:.0f} s and was stopped.",
        )
    how = raw.get("signal") or f"exit code {raw.get('code')}"
    return Outcome(
        OutcomeKind.DIED, f"The process that resolved the launch died ({how}); see its output."
    )


# What the sandbox's guard says of something that it refused, and what to do then.
_REFUSED_HERE = {
    "sandbox has no network": "casebook resolves without a network: give the model as a local checkpoint "
    "directory, or describe it in data/models/",
    "sandbox runs no code": "casebook runs no code of a checkpoint's own: name a model of the catalog in its "
    "place, or ask an installation of SGLang itself (--python)",
    "sandbox writes to its scratch folder": "a real server could write there: leave that option out to see "
    "the rest, or ask an installation of SGLang itself (--python)",
    "sandbox does not start": "a real server would start that program: leave that option out to see the "
    "rest, or ask an installation of SGLang itself (--python)",
    "sandbox has no sockets": "casebook talks to no other process: leave that option out to see the rest",
    "sandbox sends no signal": "casebook sends signals to no other process: leave that option out to see "
    "the rest",
    "huggingface.co": "casebook resolves without a network: give the model as a local checkpoint "
    "directory, or describe it in data/models/",
}


def _advice(failure: Failure | None) -> str:
    """What to do, where the failure, or one behind it, is what the sandbox itself brings about."""
    while failure is not None:
        for said, advice in _REFUSED_HERE.items():
            if said in failure.message.lower():
                return f" — {advice}."
        failure = failure.cause
    return ""


def _refusal(
    message: str,
    near: tuple[tuple[str, tuple[str, ...]], ...],
    advise: Callable[[str], str | None],
) -> str:
    text = f"argparse refuses the words: {message}."
    for flag, options in near:
        known = advise(flag)
        if known is not None:
            text += f" {known}"
        elif options:
            text += f" This release has no {flag}; nearest: {', '.join(options)}."
        else:
            text += f" This release has no {flag}, nor one like it."
    return text
