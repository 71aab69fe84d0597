"""The exact launches of a script, from running its shell in the sandbox.

Each recorded command gets the places of the static reading: a word stands where the static reading
has a word of the same text, or at its command. Text handed to another shell (``ssh``, ``tmux``) is run
in a sandbox of its own, with that shell's environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from casebook.launch import rules_shell, shebang
from casebook.launch.analysis import OUTSIDE, Analysis, conclude
from casebook.launch.field_text import FieldText
from casebook.launch.invocation import Invocation, Reading
from casebook.launch.options import options
from casebook.launch.shell_sandbox import (
    Call,
    Recording,
    SandboxUnavailableError,
    ShellLimits,
    record,
)
from casebook.launch.shell_state import State, state_for
from casebook.launch.source import Source, Text
from casebook.launch.suspicion import Suspicion, counted, note, warning
from casebook.launch.through import Found, Stage, follow, pursue
from casebook.launch.wrappers import SHELLS, Way

MAX_DEPTH = 4


def read_recorded(
    source: Source,
    *,
    release: str = "0.5.11",
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
    files: Mapping[str, str] | None = None,
    limits: ShellLimits | None = None,
) -> Analysis:
    """As ``read_shell``, with the words that bash itself makes. Falls back to the static reading, and
    says so in ``notes``, where this machine has no sandbox or the script asks for another shell."""
    static = follow(source.whole(), state_for(environment, OUTSIDE, arguments))
    extra = [*rules_shell.carriage_returns(source.text), *shebang.suspicions(source)]
    if not shebang.runs_in_sandbox(source):
        static.notes.append(
            f"{source.name} is a script for `{shebang.interpreter(source)}`, not for bash: it was read "
            "without running it."
        )
        return conclude(source, "shell script", static, options(release), extra)
    run = _Run(static, dict(files or {}), limits or ShellLimits(), list(arguments or ()))
    try:
        run.level(
            source.whole(), dict(environment or {}), (Stage("bash", source.whole()),), (), None
        )
    except SandboxUnavailableError as error:
        static.notes.append(f"{error} The script was read without running it.")
        return conclude(source, "bash script", static, options(release), extra)
    run.found.readings = static.readings
    extra += [*_complaints(run), *_replaced(run)]
    return conclude(source, "bash script, run in the sandbox", run.found, options(release), extra)


class _Run:
    """One script and all that it hands on."""

    def __init__(
        self, static: Found, files: dict[str, str], limits: ShellLimits, arguments: list[str]
    ) -> None:
        self.static, self.files, self.limits, self.arguments = static, files, limits, arguments
        self.found = Found()
        self.recordings: list[tuple[Text, Recording]] = []

    def level(
        self,
        text: Text,
        environment: Mapping[str, str],
        stages: tuple[Stage, ...],
        via: tuple[str, ...],
        outer: Invocation | None,
        ended: str = "",
        left: Mapping[str, FieldText] | None = None,
        arguments: Sequence[str] | None = None,
    ) -> None:
        """Record one text and pursue its commands."""
        commands = {
            i.name
            for _, r in self.static.readings
            for i in r.invocations
            if i.name and i.words[0].exact
        }
        recording = record(
            text.text,
            environment=environment,
            arguments=self.arguments if arguments is None else arguments,
            files=self.files,
            commands=sorted(commands)[:150],
            limits=self.limits,
        )
        self.recordings.append((text, recording))
        for call in recording.calls:
            if call.name in SHELLS and _ran_here(call):
                continue  # its commands were recorded with it
            invocation = placed(call, self._candidates(text), text)
            way = Way(
                list(invocation.words), dict(invocation.env), list(via), dict(invocation.unexported)
            )
            way.left.update(left or {})
            way.ended = ended
            state = State(outside="")
            pursue(
                way, invocation, outer or invocation, stages, self.found, {}, state, self._descend
            )

    def _candidates(self, text: Text) -> list[Invocation]:
        matching = [r for _, r in self.static.readings if r.text.text == text.text]
        readings: Iterable[Reading] = matching or [r for _, r in self.static.readings]
        return [i for r in readings for i in r.invocations]

    def _descend(
        self,
        text: Text,
        child: State,
        stages: tuple[Stage, ...],
        via: tuple[str, ...],
        outer: Invocation,
        _stdin: FieldText | None,
        _found: Found,
        _files: Mapping[str, FieldText],
        ended: str,
        left: Mapping[str, FieldText],
    ) -> None:
        if len(stages) > MAX_DEPTH:
            self.found.notes.append("Shells within shells: deeper ones were not followed.")
            return
        environment = {
            n: v.fields[0].text for n, v in child.variables.items() if v is not None and v.fields
        }
        positional = [f.text for f in child.positional]
        self.level(text, environment, stages, via, outer, ended, left, positional)


def _ran_here(call: Call) -> bool:
    """bash and sh do run inside the sandbox, so what they start is recorded by itself."""
    return bool(call.arguments or call.stdin)


def placed(call: Call, candidates: Sequence[Invocation], text: Text) -> Invocation:
    """A recorded command with the places of the static one that is most like it."""
    words = [call.name if call.path.startswith("/bin/") else call.path, *call.arguments]
    best, score = None, 0.0
    for candidate in candidates:
        texts = [w.text for w in candidate.words]
        common = (
            len(set(texts) & set(words)) + (texts == words) * 100 + (texts[:1] == words[:1]) * 2
        )
        if common > score:
            best, score = candidate, common
    start = best.start if best else (text.start if len(text) else 0)
    end = best.end if best else start + 1
    fields: list[FieldText] = []
    pool = list(best.words) if best else []
    for word in words:
        hit = next((w for w in pool if w.text == word), None)
        if hit is not None:
            pool = pool[pool.index(hit) + 1 :] or pool
            fields.append(FieldText(hit.value, quoted=hit.quoted, variables=hit.variables))
        else:
            fields.append(FieldText(Text.made(word, start)))
    static_env = best.env if best else {}
    env = {
        name: FieldText(
            static_env[name].value
            if name in static_env and static_env[name].text == value
            else Text.made(value, static_env[name].value.start if name in static_env else -1)
        )
        for name, value in call.environment.items()
    }
    left = {n: v for n, v in (best.unexported if best else {}).items() if n not in env}
    stdin = None
    if call.stdin:
        same = best is not None and best.stdin is not None and best.stdin.text == call.stdin
        stdin = best.stdin if same and best else FieldText(Text.made(call.stdin, start))
    empties = best.empties if best else ()
    return Invocation(
        tuple(fields),
        env,
        {},
        left,
        start,
        end,
        stdin,
        best.redirects if best else (),
        "",
        tuple(e for e in empties if e.known),
        best.spans if best else (),
    )


def _complaints(run: _Run) -> Iterator[Suspicion]:
    for text, recording in run.recordings:
        begin = text.start if len(text) else 0
        if recording.stopped:
            yield warning(
                "sandbox-limit",
                (begin, begin + 1),
                f"the script was stopped in the sandbox: {recording.stopped}",
                "commands after that point are not known",
                "look for a loop without an end; give the script its arguments",
            )
        elif recording.status:
            yield warning(
                "script-status",
                (begin, begin + 1),
                f"the script ended with status {recording.status} in the sandbox",
                "commands after the failing one are not known",
                "see whether it ends the same where the server starts",
            )
        yield from _stand_ins(recording, begin)
        for line, message in recording.errors:
            offset = _line_offset(text, line)
            yield warning(
                "shell-complaint",
                (offset, offset + 1),
                f"bash says: {message}",
                "what the line was to do did not happen in the sandbox",
                "see whether the line works where the server starts",
            )


def _stand_ins(recording: Recording, begin: int) -> Iterator[Suspicion]:
    """Files and folders that the script wants and the sandbox does not have."""
    wanted = [
        path
        for path in recording.made
        if path not in recording.given and not path.startswith("/bin/")
    ]
    if wanted:
        yield note(
            "path-stood-in",
            (begin, begin + 1),
            f"{counted(len(wanted), 'path')} the script uses did not exist in the sandbox and got a stand-in: "
            + ", ".join(wanted[:5])
            + (" ..." if len(wanted) > 5 else ""),
            "what the script would read there is not known; what it writes there is thrown away",
            "nothing, unless a flag depends on such a file",
        )


def _line_offset(text: Text, line: int) -> int:
    position = 0
    for _ in range(line - 1):
        position = text.text.find("\n", position) + 1
        if not position:
            return text.start
    while position < len(text) and text.text[position] in " \t":
        position += 1
    return text.at[position] if position < len(text) else text.start


_HARMLESS = frozenset(
    {"cat", "tee", "dirname", "basename", "seq", "sleep", "mkdir", "true", "false", "ssh"}
)


def _replaced(run: _Run) -> Iterator[Suspicion]:
    """Which commands were written down instead of run; one note for each name."""
    seen: set[str] = set()
    for invocation, _ in run.found.others:
        name = invocation.name.rpartition("/")[2]
        reads_a_file = name == "cat" and len(invocation.words) > 1
        if name in seen or name in SHELLS or (name in _HARMLESS and not reads_a_file):
            continue
        seen.add(name)
        at = (max(invocation.start, 0), max(invocation.end, invocation.start + 1, 1))
        yield note(
            "command-not-run",
            at,
            f"`{' '.join(w.text for w in invocation.words)[:60]}` was recorded, not run",
            "it gave no output and no error in the sandbox; where the script uses its output, that is empty here",
            "give what it would print as an environment variable, if a flag depends on it",
        )


__all__ = ["placed", "read_recorded"]
