"""The incident's script in damaged variants: what each one loses, and whether it fits what was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from casebook.errors import CasebookError, DataError
from casebook.ladder.climb import read_any
from casebook.ladder.ladder import Ladder
from casebook.launch.analysis import Analysis
from casebook.launch.copies import compare
from casebook.launch.finding import Finding
from casebook.launch.source import read_source
from casebook.resolution import Trail, trace

ORIGINAL = "launch.sh"
_PATTERN = "launch-[0-9]*"


def read_all(
    folder: Path, *, release: str = "0.5.11", run_shell: bool = True
) -> dict[str, Analysis]:
    """File name -> its reading, in order. Raises DataError if there is none."""
    found = {
        path.name: read_any(read_source(path), release=release, run_shell=run_shell)
        for path in sorted(folder.glob(_PATTERN))
    }
    if not found:
        raise DataError(f"{folder} holds no damaged variants ({_PATTERN}).")
    return found


def overview(read: Mapping[str, Analysis], flag: str) -> pd.DataFrame:
    """One row per variant: did ``flag`` arrive, how many words did, which rule explains it."""
    rows = []
    for name, analysis in read.items():
        launch = analysis.launches[0].launch if analysis.launches else None
        rows.append(
            (
                name,
                analysis.kind,
                bool(launch and launch.value_of(flag)),
                len(launch.argv) if launch else 0,
                ", ".join(dict.fromkeys(f.rule for f in analysis.errors)) or "none",
                analysis.errors[0].effect if analysis.errors else "",
            )
        )
    columns = ["file", "read as", f"{flag} arrived", "words that arrived", "rule", "effect"]
    return pd.DataFrame(rows, columns=columns)


def against_original(
    read: Mapping[str, Analysis], folder: Path, *, release: str = "0.5.11"
) -> list[Finding]:
    """What sets apart the variants whose own text is without an error: another copy."""
    original = read_any(read_source(folder / ORIGINAL), release=release, run_shell=False)
    return [f for a in read.values() if not a.errors for f in compare(original, a)]


@dataclass(frozen=True)
class Asked:
    """SGLang's answer to one variant's launch."""

    trail: Trail | None
    problem: str
    same_error: bool
    """Whether it is the error that was seen."""


def ask(read: Mapping[str, Analysis], *, release: str, gpu: str, seen: str) -> dict[str, Asked]:
    """Resolve what each variant really hands to SGLang, and compare the error with the one seen."""
    found: dict[str, Asked] = {}
    for name, analysis in read.items():
        if not analysis.launches:
            found[name] = Asked(None, "it starts no server", False)
            continue
        try:
            trail = trace(analysis.launches[0].launch, release=release, gpu=gpu)
        except CasebookError as error:
            found[name] = Asked(None, analysis.shield.text(str(error)), False)
            continue
        failure = trail.outcome.failure
        same = failure is not None and failure.begins(seen)
        found[name] = Asked(trail, "", same)
    return found


def outcomes(asked: Mapping[str, Asked]) -> pd.DataFrame:
    """One row per variant: how SGLang ends it, and whether that is what was seen."""
    rows = [
        (
            name,
            str(a.trail.outcome.kind) if a.trail else "not asked",
            a.trail.outcome.sentence if a.trail else a.problem,
            a.same_error,
        )
        for name, a in asked.items()
    ]
    return pd.DataFrame(rows, columns=["file", "SGLang", "what it says", "the error that was seen"])


@dataclass(frozen=True)
class Conclusion:
    """The notebook's verdict, in its parts."""

    state: str
    headline: str
    evidence: tuple[str, ...]
    ruled_out: tuple[str, ...]
    next_step: tuple[str, ...]


def conclude(
    read: Mapping[str, Analysis],
    asked: Mapping[str, Asked],
    ladder: Ladder,
    folder: Path,
    *,
    release: str = "0.5.11",
) -> Conclusion:
    """PASS if each variant is explained (by a finding in its text, or by comparison with the original)."""
    apart = {
        f.what.partition(" starts ")[0].removeprefix("the copy ")
        for f in against_original(read, folder, release=release)
    }
    explained = {
        name: a.errors[0].rule if a.errors else "two-copies-differ" if name in apart else ""
        for name, a in read.items()
    }
    missing = [name for name, rule in explained.items() if not rule]
    fit = [name for name, a in asked.items() if a.same_error]
    other = [
        f"`{n}`: SGLang says otherwise ({a.trail.outcome.kind if a.trail else a.problem})."
        for n, a in asked.items()
        if not a.same_error
    ]
    evidence = [f"`{name}`: {rule}." for name, rule in explained.items() if rule]
    evidence.append(
        f"{len(fit)} of {len(asked)} variants end with the error that was seen: {', '.join(f'`{n}`' for n in fit) or 'none'}."
    )
    evidence.append(ladder.answer())
    state = "FAIL" if missing else "PASS" if fit else "INCONCLUSIVE"
    headline = (
        f"No explanation was found for {', '.join(missing)}."
        if missing
        else f"All {len(read)} damaged variants are explained; {len(fit)} of them end as the incident did on {release}."
    )
    return Conclusion(
        state,
        headline,
        tuple(evidence),
        tuple(other),
        (
            "On the node, compare `sha256sum` of the script with that of the copy that was meant.",
            "Read `/proc/PID/cmdline` of the server, or start it with `casebook record -- ...`, which keeps its argv.",
        ),
    )
