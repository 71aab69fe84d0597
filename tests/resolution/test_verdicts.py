"""One case per verdict, and the outcome in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from casebook.resolution.interpret import Typed
from casebook.resolution.model import (
    Change,
    Failure,
    Frame,
    LogLine,
    Outcome,
    OutcomeKind,
    Verdict,
    short,
)
from casebook.resolution.verdicts import judge, outcome_of

STARTS = Outcome(OutcomeKind.STARTS, "")
AT = Frame("srt/server_args.py", 10, "_handle_x", "self.page_size = 1")


def change(old: Any, new: Any, message: str | None = None) -> Change:
    said = LogLine("WARNING", message, AT) if message else None
    return Change(old, new, "assign", "parse", (AT,), None, said)


def typed(value: Any, times: int = 1) -> Typed:
    return Typed(f"--page-size {value}", "--page-size", "command line", value, times)


def verdict(
    given: Typed | None, parsed: Any, final: Any, *changes: Change, **more: Any
) -> tuple[Verdict, str]:
    outcome = more.pop("outcome", STARTS)
    argument = judge("page_size", ["--page-size"], given, parsed, changes, final, outcome, **more)
    return argument.verdict, argument.note


def rejected(message: str) -> Outcome:
    return Outcome(OutcomeKind.REJECTED, "", Failure("ValueError", message, (AT,)))


def test_defaulted() -> None:
    assert verdict(None, 1, 1)[0] is Verdict.DEFAULTED


def test_derived_tells_the_line() -> None:
    found, note = verdict(None, None, 1, change(None, 1))
    assert found is Verdict.DERIVED
    assert "server_args.py:10 in _handle_x" in note


def test_honoured() -> None:
    assert verdict(typed(32), 32, 32)[0] is Verdict.HONOURED


def test_changed_and_changed_back_is_honoured_and_told() -> None:
    found, note = verdict(typed(32), 32, 32, change(32, 1), change(1, 32))
    assert found is Verdict.HONOURED
    assert "changed back" in note


def test_overridden_with_a_message_and_without() -> None:
    assert verdict(typed(32), 32, 1, change(32, 1, "set to 1"))[0] is Verdict.OVERRIDDEN
    found, note = verdict(typed(32), 32, 1, change(32, 1))
    assert found is Verdict.OVERRIDDEN_SILENTLY
    assert "No log line" in note


def test_lost_is_what_was_meant_and_not_typed() -> None:
    found, note = verdict(None, None, 1, change(None, 1), intended="--page-size 32")
    assert found is Verdict.LOST
    assert "--page-size 32" in note


def test_blamed_by_flag_although_never_given() -> None:
    found, note = verdict(
        None, None, 1, change(None, 1), outcome=rejected("bad --page-size 1"), intended="x"
    )
    assert found is Verdict.REJECTED
    assert "you did not give" in note
    assert "server_args.py:10" in note


@pytest.mark.parametrize(
    ("message", "blamed"),
    [
        ("--page-size must be 1", True),
        ("page_size must be 1", True),
        ("--page-size-limit is bad", False),
        ("the page size is bad", False),
        ("big_page_size_x", False),
    ],
)
def test_blame_needs_the_flag_or_the_field_as_code(message: str, blamed: bool) -> None:
    found, _ = verdict(typed(32), 32, 32, outcome=rejected(message))
    assert (found is Verdict.REJECTED) is blamed


def test_a_repeated_option_is_told() -> None:
    assert "given 3 times" in verdict(typed(32, times=3), 32, 32)[1]


def test_true_is_not_one() -> None:
    assert verdict(typed(1), 1, True, change(1, True))[0] is Verdict.OVERRIDDEN_SILENTLY


def test_outcome_of_a_refusal_names_the_nearest_flags() -> None:
    line = {
        "refusal": "unrecognized arguments: --page-sise 1",
        "nearest_flags": {"--page-sise": ["--page-size"], "--zzz": []},
    }
    outcome = outcome_of({"kind": "exit", "code": 2}, line, None)
    assert outcome.kind is OutcomeKind.REFUSED
    assert "nearest: --page-size" in outcome.sentence
    assert "no --zzz, nor one like it" in outcome.sentence


@pytest.mark.parametrize(
    ("raw", "kind", "text"),
    [
        ({"kind": "exit", "code": 0}, OutcomeKind.EXITED, "exit code 0"),
        ({"kind": "timeout", "seconds": 5.0}, OutcomeKind.TIMED_OUT, "5 s"),
        ({"kind": "died", "signal": "SIGKILL"}, OutcomeKind.DIED, "SIGKILL"),
        ({"kind": "died", "code": 3}, OutcomeKind.DIED, "exit code 3"),
    ],
)
def test_other_ends(raw: dict[str, Any], kind: OutcomeKind, text: str) -> None:
    outcome = outcome_of(raw, {}, None)
    assert outcome.kind is kind
    assert text in outcome.sentence


def test_a_failure_for_want_of_a_network_says_what_to_do() -> None:
    failure = Failure("OSError", "We couldn't connect to 'https://huggingface.co'", (AT,))
    outcome = outcome_of({"kind": "raised"}, {}, failure)
    assert "data/models/" in outcome.sentence


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (
            "casebook: the sandbox runs no code from a checkpoint or other folder (/x.py)",
            "--python",
        ),
        (
            "casebook: the sandbox writes to its scratch folder only (not to '/x')",
            "leave that option",
        ),
        ("casebook: the sandbox does not start '/x'", "leave that option"),
        ("casebook: the sandbox has no sockets of others (connect to '/x')", "no other process"),
        ("casebook: the sandbox has no network (connect to ('1.1.1.1', 80))", "data/models/"),
    ],
)
def test_what_the_guard_refused_is_told_as_the_sandboxs_doing(said: str, advice: str) -> None:
    refused = Failure("PermissionError", said, (AT,))
    behind = Failure("ValueError", "cannot load the configuration", (AT,), refused)
    for failure in (refused, behind):
        assert advice in outcome_of({"kind": "raised"}, {}, failure).sentence


def test_an_error_without_a_message_shows_its_line() -> None:
    sentence = outcome_of({"kind": "raised"}, {}, Failure("AssertionError", "", (AT,))).sentence
    assert sentence.endswith("self.page_size = 1")


def test_short_values() -> None:
    assert short("x" * 100, 40).endswith("x" * 10)
    assert len(short("x" * 100, 40)) == 40
    assert short({"$type": "T", "$repr": "<T>"}) == "<T>"
    assert short(None) == "None"
