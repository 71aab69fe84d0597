"""Was the flag overridden in SGLang, or lost on the way? Judged from two trails.

Both launches are the same but for one flag. The trail of the launch *with* it tests whether SGLang
overrides it; the trail *without* it tests whether its absence produces what was seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from casebook.resolution.model import Argument, Change, Frame, OutcomeKind, Verdict, short
from casebook.resolution.trail import Trail


class Cause(StrEnum):
    """What the evidence says of the incident."""

    LOST = "lost on the way"
    OVERRIDDEN = "overridden in SGLang"
    IMPOSSIBLE = "not possible on this release"
    UNDECIDED = "not decided"


@dataclass(frozen=True)
class Finding:
    """The answer, the evidence for it, what it rules out and what to do next; all sentences."""

    cause: Cause
    headline: str
    evidence: tuple[str, ...]
    ruled_out: tuple[str, ...]
    next_step: str

    @property
    def paragraph(self) -> str:
        """All of it as one paragraph."""
        ruled = f" Ruled out: {' '.join(self.ruled_out)}" if self.ruled_out else ""
        return f"{self.headline} {' '.join(self.evidence)}{ruled} Next: {self.next_step}"


def judge(flag: str, value: str, given: Trail, absent: Trail, seen: str) -> Finding:
    """The finding for ``flag`` from the trail with it, the trail without it, and the error seen.

    ``seen`` is the error's message, or its beginning.
    """
    same_given, same_absent = _raised(given, seen), _raised(absent, seen)
    evidence = (_with_flag(flag, value, given), _without_flag(flag, absent))
    if given.outcome.kind in (OutcomeKind.DIED, OutcomeKind.TIMED_OUT) or absent.outcome.kind in (
        OutcomeKind.DIED,
        OutcomeKind.TIMED_OUT,
    ):
        return Finding(
            Cause.UNDECIDED,
            f"SGLang {given.release} could not be asked to the end.",
            evidence,
            (),
            "run the launch again with a longer limit, or on a live installation.",
        )
    if same_absent and not same_given:
        return Finding(
            Cause.LOST,
            f"The flag never reached SGLang's parser: on {given.release} the error seen is what "
            f"the same launch gives without {flag}.",
            evidence,
            (f"SGLang overriding {flag}: given, it does not lead to this error.",),
            "look at what lies between the script and the parser: the copy that ran, line "
            "continuations, quoting through ssh or a heredoc (`/proc/PID/cmdline` shows what arrived).",
        )
    if same_given:
        also = " It is raised without the flag, too." if same_absent else ""
        return Finding(
            Cause.OVERRIDDEN,
            f"SGLang {given.release} raises this error although {flag} {value} is given.{also}",
            evidence,
            ("The flag being lost: it arrived, and the error came all the same.",),
            "read the lines named above: they decide against the flag.",
        )
    return Finding(
        Cause.IMPOSSIBLE,
        f"On SGLang {given.release} neither launch gives the error that was seen, so this release "
        "is not the one that ran.",
        evidence,
        (),
        "ask which release the server really ran (`python -c 'import sglang; "
        "print(sglang.__version__)'` there), and run this notebook on that one.",
    )


def strategy_argument(trail: Trail, flag: str) -> Argument | None:
    """The argument a flag sets, also where a release renamed the field behind it."""
    if flag in trail:
        return trail[flag]
    for argument in trail.arguments:
        if argument.typed and argument.typed.startswith(flag):
            return argument
    renamed = "mamba_radix_cache_strategy"
    return trail[renamed] if "mamba" in flag and renamed in trail else None


def deciding_change(trail: Trail, flag: str) -> Change | None:
    """The change that set the flag's final value, if SGLang made one."""
    argument = strategy_argument(trail, flag)
    return argument.changes[-1] if argument and argument.changes else None


def _raised(trail: Trail, seen: str) -> bool:
    failure = trail.outcome.failure
    return failure is not None and failure.begins(seen)


def _with_flag(flag: str, value: str, trail: Trail) -> str:
    if trail.outcome.kind is OutcomeKind.REFUSED:
        return f"With {flag} {value} the launch is refused before anything else: {trail.outcome.sentence}"
    argument = strategy_argument(trail, flag)
    if argument is None or argument.typed is None:
        return f"With {flag} {value} the launch ends so: {trail.outcome.sentence}"
    kept = (
        f"is kept from start to end ({short(argument.final)})"
        if argument.verdict is Verdict.HONOURED
        else f"is {argument.verdict}: {argument.note}"
    )
    ends = "the launch starts" if trail.outcome.starts else f"but: {trail.outcome.sentence}"
    return (
        f"Given, {flag} {value} {kept}, and {ends}."
        if trail.outcome.starts
        else (f"Given, {flag} {value} {kept}; {ends}")
    )


def _without_flag(flag: str, trail: Trail) -> str:
    argument = strategy_argument(trail, flag)
    change = deciding_change(trail, flag)
    way = ""
    if argument is not None and change is not None:
        way = f" {short(change.old)} becomes {short(change.new)} at {change.where};"
    if not trail.outcome.starts:
        return f"Without it,{way} {trail.outcome.sentence}"
    text = f"Without it,{way} the launch starts."
    radix = trail.get("disable_radix_cache")
    if radix is not None and radix.final is True and radix.typed is None and radix.changes:
        said = radix.changes[-1].message
        how = "with no word in the log" if said is None else f'with one log line: "{said.message}"'
        text += f" But its prefix cache is gone: disable_radix_cache becomes True at {radix.changes[-1].where}, {how}."
    return text


def check_assumptions(
    flag: str, given: Trail, absent: Trail, deciding: Frame | None, found_by_search: bool
) -> dict[str, tuple[bool | None, str]]:
    """The three assumptions made while reading, each put to the test: ``id -> (held, why)``.

    ``deciding`` is the line that set the value the error names, ``found_by_search`` whether a search
    for writes in the source names that line. None means that the trails cannot tell.
    """
    failure = absent.outcome.failure
    typed = strategy_argument(given, flag)
    arrived = typed is not None and typed.typed is not None
    parser: tuple[bool | None, str]
    if failure is not None and arrived and given.outcome.starts:
        parser = (
            False,
            "Where the parser gets the flag, the error does not come; where it does not, it does.",
        )
    else:
        parser = (None, "On this release the two launches do not tell it.")
    if deciding is None:
        return {
            "parser": parser,
            "adjustments": (None, "Without the flag nothing is written on this release."),
            "source": (None, "There is no write to find."),
        }
    raised_in = {frame.function for frame in failure.frames} if failure else set()
    in_adjustments = "model_specific_adjustments" in deciding.function
    if in_adjustments:
        adjustments: tuple[bool | None, str] = (True, f"The value is written at {deciding.where}.")
    elif any("model_specific_adjustments" in function for function in raised_in):
        adjustments = (
            False,
            f"Only the check sits there. The value is written earlier, at {deciding.where}.",
        )
    else:
        adjustments = (False, f"The value is written at {deciding.where}.")
    source = (
        found_by_search,
        f"A search for writes to the field {'names' if found_by_search else 'does not name'} "
        f"{deciding}.",
    )
    return {"parser": parser, "adjustments": adjustments, "source": source}
