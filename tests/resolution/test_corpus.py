"""Public reports of changed, refused and lost arguments, against SGLang's own code.

``corpus.toml`` holds the launches and what is expected of them. ``python tests/resolution/test_corpus.py``
runs them all and prints which reports are reproduced.

A run's keys: ``release``, ``gpu``, ``launch`` (its words; ``{config}`` is the path of a file that holds
``config``), ``model`` (facts that stand in), ``env``; and what must hold:

- ``outcome``; ``error`` (type), ``message`` (how it begins, white space aside), ``error_at`` (its place)
- ``refusal``: what the refusal contains; ``nearest_flags``: unknown flag = one of the flags offered for it
- ``log`` and ``no_log``: what some line of the log contains, what none does
- ``reads`` and ``never_reads``: environment variables
- per argument ``final`` or ``not_final`` or ``ends_unset``, ``passes`` (values on the way), ``verdict``,
  ``at`` (part of the place of the last change), ``message`` (part of the log line beside it), ``silent``
  (no log line), ``note`` (part of it), ``origin``, ``typed``, ``times`` given
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casebook.catalog.releases import load_releases
from casebook.launch import Launch
from casebook.resolution import Argument, Trail, trace

CORPUS = tomllib.loads(Path(__file__).with_name("corpus.toml").read_text("utf-8"))
CASES: list[dict[str, Any]] = CORPUS["case"]
LEFT_OUT: list[dict[str, Any]] = CORPUS["left_out"]
SHARE = 0.9
# One child for each release and GPU; these few are quick enough for every run of the tests.
QUICK = {("0.5.8.post1", "B200"), ("0.5.15.post1", "B200"), ("0.5.23", "B200")}
_ORDER = list(load_releases())


@dataclass(frozen=True)
class Run:
    """One launch of one case."""

    case: dict[str, Any]
    number: int
    facts: dict[str, Any]

    @property
    def label(self) -> str:
        """Names the run in pytest's output."""
        return f"{self.case['id']}-{self.number}-{self.facts['release']}-{self.facts['gpu']}"

    @property
    def child(self) -> tuple[str, str]:
        """What has to be started for it."""
        return self.facts["release"], self.facts["gpu"]

    def trail(self, folder: Path) -> Trail:
        """Run it; ``folder`` is for its configuration file."""
        config = folder / "config.yaml"
        if "config" in self.facts:
            config.write_text(self.facts["config"], encoding="utf-8")
        words = [w.replace("{config}", str(config)) for w in shlex.split(self.facts["launch"])]
        plain = Launch.of(words)
        launch = Launch(plain.argv, {**plain.env, **self.facts.get("env", {})}, plain.entry)
        return trace(
            launch,
            release=self.facts["release"],
            gpu=self.facts["gpu"],
            model=self.facts.get("model"),
        )

    def differences(self, folder: Path) -> list[str]:
        """What is otherwise than expected."""
        return _differences(self.trail(folder), self.facts)


def _in_order(run: Run) -> tuple[int, str]:
    return _ORDER.index(run.facts["release"]), run.facts["gpu"]


# Runs that share a child stand together, so that each child is started once.
RUNS = sorted(
    (Run(case, n, facts) for case in CASES for n, facts in enumerate(case["run"], 1)),
    key=_in_order,
)


def _differences(trail: Trail, facts: dict[str, Any]) -> list[str]:
    found = []
    outcome, failure = trail.outcome, trail.outcome.failure
    if outcome.kind != facts["outcome"]:
        found.append(f"outcome is {outcome.kind}, not {facts['outcome']}: {outcome.sentence}")
    if "error" in facts:
        kind, message = (failure.type, failure.message) if failure else ("none", "")
        place = failure.frame.where if failure and failure.frame else ""
        if kind != facts["error"]:
            found.append(f"error is {kind}, not {facts['error']}")
        if not _plain(message).startswith(_plain(facts["message"])):
            found.append(f"error says {message!r}")
        if facts.get("error_at", "") not in place:
            found.append(f"error is at {place}, not {facts['error_at']}")
    for text in facts.get("refusal", ()):
        if text not in outcome.sentence:
            found.append(f"refusal lacks {text!r}: {outcome.sentence}")
    nearest = dict(outcome.nearest_flags)
    for flag, offered in facts.get("nearest_flags", {}).items():
        if offered not in nearest.get(flag, ()):
            found.append(f"for {flag} it offers {nearest.get(flag)}, not {offered}")
    for text in facts.get("log", ()):
        if not any(text in line.message for line in trail.log):
            found.append(f"no log line says {text!r}")
    for text in facts.get("no_log", ()):
        found += [f"a log line says {line.message!r}" for line in trail.log if text in line.message]
    read = {access.name for access in trail.environment if access.operation == "read"}
    found += [f"{name} is not read" for name in facts.get("reads", ()) if name not in read]
    found += [f"{name} is read" for name in facts.get("never_reads", ()) if name in read]
    for field, expected in facts.get("arguments", {}).items():
        argument = trail.get(field)
        if argument is None:
            found.append(f"{field}: there is no such argument")
        else:
            found += [f"{field}: {text}" for text in _argument_differences(argument, expected)]
    return found


def _argument_differences(argument: Argument, expected: dict[str, Any]) -> list[str]:
    found = []
    final = argument.final
    if "final" in expected and not _same(final, expected["final"]):
        found.append(f"ends as {final!r}, not {expected['final']!r}")
    if "not_final" in expected and _same(final, expected["not_final"]):
        found.append(f"ends as {final!r}")
    if expected.get("ends_unset") and final is not None:
        found.append(f"ends as {final!r}, not unset")
    values = [change.new for change in argument.changes]
    found += [f"is never {v!r}" for v in expected.get("passes", ()) if v not in values]
    for key, seen in {
        "verdict": str(argument.verdict),
        "origin": argument.origin,
        "typed": argument.typed,
    }.items():
        if key in expected and seen != expected[key]:
            found.append(f"{key} is {seen!r}, not {expected[key]!r} ({argument.note})")
    for key, text in {
        "at": argument.where,
        "message": argument.message,
        "note": argument.note,
    }.items():
        if expected.get(key, "") not in text:
            found.append(f"{key} is {text!r}, lacks {expected[key]!r}")
    if expected.get("silent") and argument.message:
        found.append(f"is not silent: {argument.message!r}")
    if "times" in expected and f"given {expected['times']} times" not in argument.note:
        found.append(f"note does not say {expected['times']} times: {argument.note!r}")
    return found


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _plain(text: str) -> str:
    return "".join(text.split())


def _reproduced() -> list[dict[str, Any]]:
    return [case for case in CASES if case.get("reproduced", True)]


@pytest.mark.capsule
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run, id=run.label, marks=() if run.child in QUICK else pytest.mark.slow)
        for run in RUNS
    ],
)
def test_a_report(run: Run, tmp_path: Path) -> None:
    assert run.differences(tmp_path) == []


def test_every_report_of_the_collection_is_there_once() -> None:
    ids = [entry["id"] for entry in (*CASES, *LEFT_OUT)]
    assert len(ids) == len(set(ids)) == CORPUS["total"]


def test_each_says_what_it_shows_or_why_not() -> None:
    for case in CASES:
        assert case["run"]
        assert case["shows"].endswith(".")
        assert case.get("reproduced", True) or case["reason"]
    assert all(entry["reason"] for entry in LEFT_OUT)


def test_most_of_the_rebuilt_reports_are_reproduced() -> None:
    assert len(_reproduced()) >= SHARE * len(CASES)


def main() -> int:
    """Run everything and print a table; 1 if a run is otherwise than expected."""
    found: dict[str, list[str]] = {case["id"]: [] for case in CASES}
    for run in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            found[run.case["id"]] += [f"{run.label}: {d}" for d in run.differences(Path(folder))]
    rows = []
    for case in CASES:
        releases = sorted({run["release"] for run in case["run"]}, key=_ORDER.index)
        wrong = found[case["id"]]
        holds = case.get("reproduced", True) and not wrong
        reason = "; ".join(wrong) or case.get("reason") or case.get("nearest", "")
        rows.append((case["id"], ", ".join(releases), "yes" if holds else "no", reason))
    rows += [(entry["id"], "-", "left out", entry["reason"]) for entry in LEFT_OUT]
    rows.sort()
    width = max(len(row[1]) for row in rows)
    for name, releases, verdict, reason in rows:
        print(f"{name}  {releases:{width}}  {verdict:8}  {reason}".rstrip())
    good = sum(row[2] == "yes" for row in rows)
    print(
        f"\n{CORPUS['total']} reports: {len(CASES)} rebuilt ({len(RUNS)} launches), "
        f"{good} reproduced ({good / len(CASES):.0%}), {len(LEFT_OUT)} left out."
    )
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
