"""Trails side by side: over releases, GPUs, models or launches; and the release where it changed."""

from __future__ import annotations

import ast
import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from tqdm.auto import tqdm

from casebook import capsule as capsules
from casebook.catalog.releases import load_releases
from casebook.errors import CasebookError
from casebook.launch import Launch
from casebook.resolution import sources
from casebook.resolution.model import Argument, Frame, Verdict, short
from casebook.resolution.trace import trace
from casebook.resolution.trail import Trail

ABSENT = "(no such argument)"
Words = Launch | str | Sequence[str]
Predicate = Callable[[Trail], bool]


def side_by_side(trails: Mapping[str, Trail], only_different: bool = True) -> pd.DataFrame:
    """One row per argument, one column per trail: its final value, or how it came to be.

    ``only_different`` keeps the arguments whose typed words, final value or verdict differ.
    """
    whole = all(trail.arguments for trail in trails.values())  # a refused launch has none
    names = dict.fromkeys(
        a.field
        for trail in trails.values()
        for a in (trail.arguments if whole or not only_different else trail.interesting())
    )
    rows = {}
    for name in names:
        found = [trail.get(name) for trail in trails.values()]
        if only_different and len({_identity(a) for a in found}) == 1:
            continue
        rows[name] = {label: story(a) for label, a in zip(trails, found, strict=True)}
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(trails))
    frame.index.name = "argument"
    return frame


def final_values(trails: Mapping[str, Trail], only_different: bool = True) -> pd.DataFrame:
    """One row per argument, one column per trail: the final value alone.

    With ``only_different``, the rows whose value is not the same everywhere; an argument that some
    trails lack and that keeps its default in the others is left out, too.
    """
    names = dict.fromkeys(a.field for trail in trails.values() for a in trail.arguments)
    rows = {}
    for name in names:
        found = [trail.get(name) for trail in trails.values()]
        values = [ABSENT if a is None else short(a.final, 40) for a in found]
        plain = all(a is None or a.verdict is Verdict.DEFAULTED for a in found)
        present = {value for value, a in zip(values, found, strict=True) if a is not None}
        differs = len(present) > 1 if plain else len(set(values)) > 1
        if not only_different or differs:
            rows[name] = dict(zip(trails, values, strict=True))
    frame = pd.DataFrame.from_dict(rows, orient="index", columns=list(trails))
    frame.index.name = "argument"
    return frame


def highlight(frame: pd.DataFrame) -> Any:
    """The table with each value that differs from the one to its left in bold italics."""

    def marks(row: pd.Series) -> list[str]:
        values = list(row)
        changed = [False, *(a != b for a, b in itertools.pairwise(values))]
        return ["font-weight:bold;font-style:italic" if c else "" for c in changed]

    return frame.style.apply(marks, axis=1)


def over_releases(
    launch: Words, releases: Iterable[str] | None = None, **options: Any
) -> dict[str, Trail]:
    """The trail of one launch on each release (default: all), oldest first. Options as ``trace``."""
    known = sorted(load_releases().values())
    chosen = [r.version for r in known] if releases is None else list(releases)
    return _each(chosen, "release", launch, options)


def over_gpus(launch: Words, gpus: Iterable[str], **options: Any) -> dict[str, Trail]:
    """The trail of one launch on each GPU profile."""
    return _each(list(gpus), "gpu", launch, options)


def over_models(launch: Words, models: Iterable[str], **options: Any) -> dict[str, Trail]:
    """The trail of one launch with each model in the place of its own."""
    launch = Launch.of(launch)
    found = {}
    for name in tqdm(list(models), desc="models", leave=False):
        own = launch.value_of("--model-path", "--model")
        given = Launch((*launch.argv, "--model-path", name), launch.env, launch.entry)
        found[name] = trace(launch.replacing(own, name) if own else given, **options)
    return found


def _each(
    values: list[str], option: str, launch: Words, options: dict[str, Any]
) -> dict[str, Trail]:
    return {
        value: trace(launch, **{**options, option: value})
        for value in tqdm(values, desc=f"{option}s", leave=False)
    }


# -- questions to ask of a trail ------------------------------------------------------------


def raises(message: str) -> Predicate:
    """Does SGLang raise an error whose message begins with ``message`` (white space apart)?"""

    def ask(trail: Trail) -> bool:
        failure = trail.outcome.failure
        return failure is not None and failure.begins(message)

    return ask


def ends_as(field: str, value: Any) -> Predicate:
    """Does the argument end with ``value``?"""

    def ask(trail: Trail) -> bool:
        argument = trail.get(field)
        return argument is not None and argument.final == value

    return ask


def has_verdict(field: str, *verdicts: str) -> Predicate:
    """Does the argument get one of ``verdicts``?"""

    def ask(trail: Trail) -> bool:
        argument = trail.get(field)
        return argument is not None and str(argument.verdict) in verdicts

    return ask


def starts(trail: Trail) -> bool:
    """Does the launch start?"""
    return trail.outcome.starts


# -- the release where it changed -----------------------------------------------------------


@dataclass(frozen=True)
class FunctionDiff:
    """How one function of SGLang's differs between two releases; ``diff`` in unified form."""

    file: str
    function: str
    diff: str


@dataclass(frozen=True)
class Bisection:
    """The first release in which a predicate holds, and what changed on the way there."""

    first: str
    before: str
    asked: dict[str, bool]
    """Each release that was asked, with the answer."""
    trails: dict[str, Trail]
    """The trails of ``before`` and ``first``."""
    diffs: tuple[FunctionDiff, ...]
    """The functions that decided differently, and how their text differs."""

    def __str__(self) -> str:
        asked = ", ".join(f"{release} {'yes' if a else 'no'}" for release, a in self.asked.items())
        return f"It holds from {self.first} on, and not in {self.before} (asked: {asked})."


def bisect(
    launch: Words,
    predicate: Predicate,
    *,
    good: str,
    bad: str,
    known: Mapping[str, Trail] | None = None,
    **options: Any,
) -> Bisection:
    """The first release after ``good`` in which ``predicate`` holds for the launch's trail.

    It must not hold in ``good`` and must hold in ``bad``; between them it is taken to change once.
    Raises CasebookError if it does not. ``known`` are trails of this launch by release, not to be made
    again. Options as ``trace``.
    """
    versions = [r.version for r in sorted(load_releases().values())]
    for name in (good, bad):
        if name not in versions:
            capsules.ensure(name)  # raises with the nearest names
    low, high = versions.index(good), versions.index(bad)
    if low >= high:
        raise CasebookError(
            f"bisect needs a good release older than the bad one, not {good}, {bad}."
        )
    trails = dict(known or {})

    def ask(position: int) -> bool:
        version = versions[position]
        if version not in trails:
            trails[version] = trace(launch, **{**options, "release": version})
        return predicate(trails[version])

    answers = {good: ask(low), bad: ask(high)}
    if answers[good] or not answers[bad]:
        raise CasebookError(
            f"bisect needs a predicate that does not hold in {good} and holds in {bad}; here it "
            f"{'holds' if answers[good] else 'does not hold'} in {good} and "
            f"{'holds' if answers[bad] else 'does not hold'} in {bad}."
        )
    while high - low > 1:
        middle = (low + high) // 2
        answers[versions[middle]] = ask(middle)
        low, high = (low, middle) if answers[versions[middle]] else (middle, high)
    before, first = trails[versions[low]], trails[versions[high]]
    asked = {v: answers[v] for v in versions if v in answers}
    return Bisection(
        versions[high],
        versions[low],
        asked,
        {versions[low]: before, versions[high]: first},
        tuple(function_diffs(before, first)),
    )


def function_diffs(before: Trail, first: Trail) -> list[FunctionDiff]:
    """The functions that decided what differs between two releases' trails, and their diffs.

    A function moved to another file is compared with its namesake there.
    """
    failures = [t.outcome.failure for t in (first, before) if t.outcome.failure is not None]
    frames = [frame for failure in failures for frame in failure.frames[-1:]]  # what ended it first
    frames += _deciding_frames(first, before) + _deciding_frames(before, first)
    names = dict.fromkeys(f.function for f in frames if not f.function.startswith("<"))
    texts = [_functions(trail, list(names)) for trail in (before, first)]
    found = []
    for name in names:
        old, new = texts[0].get(name), texts[1].get(name)
        if (old or ("", ""))[1] == (new or ("", ""))[1]:
            continue
        lines = difflib.unified_diff(
            old[1].splitlines() if old else [],
            new[1].splitlines() if new else [],
            f"{before.release}/{old[0] if old else '(absent)'}",
            f"{first.release}/{new[0] if new else '(absent)'}",
            lineterm="",
        )
        found.append(FunctionDiff((new or old or ("", ""))[0], name, "\n".join(lines)))
    return found


def _deciding_frames(trail: Trail, other: Trail) -> list[Frame]:
    """The deciding lines of the arguments that end otherwise in ``other``."""
    return [
        change.frame
        for argument in trail.interesting()
        if _identity(other.get(argument.field)) != _identity(argument)
        for change in argument.changes
        if change.frame
    ]


def _functions(trail: Trail, names: list[str]) -> dict[str, tuple[str, str]]:
    """Function name -> (file, dedented text) in a trail's release, looked for where SGLang decides."""
    from casebook.resolution.search import DECIDING, files

    held = capsules.ensure(trail.release)
    found: dict[str, tuple[str, str]] = {}
    for path in files(held, DECIDING):
        source = sources.read(path)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef) and node.name in names and node.name not in found:
                text = "\n".join(source.lines[node.lineno - 1 : node.end_lineno])
                found[node.name] = (path.relative_to(held.sglang).as_posix(), text)
    return found


def story(argument: Argument | None) -> str:
    """An argument's way in one line: values with the places where they changed, and the verdict."""
    if argument is None:
        return ABSENT
    steps = [short(argument.parsed, 28)]
    steps += [f"{short(c.new, 28)} [{c.frame or c.kind}]" for c in argument.changes]
    return f"{' → '.join(steps)} ({argument.verdict})"


def _identity(argument: Argument | None) -> tuple[str, ...]:
    if argument is None:
        return (ABSENT,)
    return (repr(argument.typed), repr(argument.final), str(argument.verdict))
