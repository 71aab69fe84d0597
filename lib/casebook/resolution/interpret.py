"""From the recorder's raw answer to the parts of a trail. Pure, but for reading SGLang's source text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casebook.errors import DataError
from casebook.launch import Launch
from casebook.resolution import sources
from casebook.resolution.model import Change, EnvAccess, Failure, Frame, LogLine, same

# Functions that pass a decision on: the line to name is their caller's, or the provider's.
PASS_ON = frozenset(
    {
        "declare_resolution",
        "run_post_process_pass",
        "record_foreign_defaults",
        "materialize_declarations",
        "apply_model_overrides",
        "__setattr__",
        "call",
    }
)
# Where logging helpers live: a message belongs to the code that called them.
_LOG_HELPERS = frozenset(
    {"print_warning_once", "print_info_once", "log_info_on_rank0", "rank0_log"}
)


@dataclass(frozen=True)
class Reader:
    """Turns raw frames into ``Frame``; knows the package's folder."""

    package: Path
    _known: dict[str, sources.Source | None] = dataclasses.field(
        default_factory=dict, compare=False, init=False, repr=False
    )

    def frame(self, raw: list[Any]) -> Frame:
        file, line, function = raw[0], raw[1], raw[2]
        return Frame(file, line, function, self.source_line(file, line))

    def source(self, file: str) -> sources.Source | None:
        if file not in self._known:
            try:
                self._known[file] = sources.read(self.package / file)
            except DataError:
                self._known[file] = None  # a live installation may run without its sources
        return self._known[file]

    def source_line(self, file: str, line: int) -> str:
        source = self.source(file)
        return source.line(line) if source else ""


@dataclass
class _Raw:
    """A change with what is needed to find its message and its true author."""

    position: int
    event: dict[str, Any]
    stack: list[list[Any]]


def changes(events: list[dict[str, Any]], reader: Reader) -> dict[str, list[Change]]:
    """The real changes per field, in order: no-ops dropped, each with its deciding line and message."""
    logs = [_Raw(i, e, _unhelped(e["stack"])) for i, e in enumerate(events) if e["kind"] == "log"]
    changed = {
        e["field"]
        for e in events
        if e["kind"] in ("assign", "declare") and not same(e["old"], e["new"])
    }
    found: dict[str, list[Change]] = {}
    declared: dict[tuple[str, str], _Raw] = {}
    for position, event in enumerate(events):
        if event["kind"] not in ("assign", "declare"):
            continue
        field, old, new = event["field"], event["old"], event["new"]
        stack = event["stack"]
        decided = _at_key(event.get("decided"), field, new, reader)
        author = _Raw(position, event, _deciding(stack, decided))
        if event["kind"] == "declare":
            declared[field, repr(new)] = author
        elif stack and stack[0][2] == "materialize_declarations":
            author = declared.get((field, repr(new)), author)
        if same(old, new):
            continue
        message = _message_for(author, field, logs, reader, changed)
        found.setdefault(field, []).append(
            Change(
                old=old,
                new=new,
                kind=event["kind"],
                phase=event["phase"],
                frames=tuple(reader.frame(raw) for raw in author.stack),
                source=author.event.get("source"),
                message=message,
            )
        )
    return found


def _at_key(
    decided: list[list[Any]] | None, field: str, value: Any, reader: Reader
) -> list[list[Any]] | None:
    """A provider's frames, its ``return`` narrowed to the line that gave the field its value."""
    if not decided:
        return decided
    file, line, *rest = decided[0]
    source = reader.source(file)
    line = source.declared_at(line, field, value) if source else line
    return [[file, line, *rest], *decided[1:]]


def _deciding(stack: list[list[Any]], decided: list[list[Any]] | None) -> list[list[Any]]:
    """The frames of a change with the deciding line first."""
    callers = list(stack)
    while len(callers) > 1 and callers[0][2] in PASS_ON:
        callers.pop(0)
    if not decided:
        return callers
    # The provider returned its declaration to a helper; the helper's callers are common to both.
    known = {tuple(frame[:3]) for frame in decided}
    return [f for f in decided if f[2] not in PASS_ON] + [
        f for f in callers if tuple(f[:3]) not in known
    ]


def _unhelped(stack: list[list[Any]]) -> list[list[Any]]:
    while len(stack) > 1 and stack[0][2] in _LOG_HELPERS:
        stack = stack[1:]
    return stack


def _message_for(
    change: _Raw, field: str, logs: list[_Raw], reader: Reader, changed: Collection[str]
) -> LogLine | None:
    """The log record that explains a change, or None.

    It comes from the same call of the same function (or, naming the argument, from its caller). Out of
    a branch that encloses the change or is enclosed by it, it is taken, unless it names another
    changed argument and not this one. In the function's own body, where everything is a neighbour of
    everything, it must name the argument; from a sibling branch it must tell the new value, too.
    """
    best: tuple[int, _Raw] | None = None
    for level, (file, line, function, identity) in enumerate(change.stack[:2]):
        source = reader.source(file)
        if source is None:
            continue
        for log in logs:
            for depth_of_log, frame in enumerate(log.stack):
                log_file, log_line, log_function, log_identity = frame
                if (log_file, log_function, log_identity) != (file, function, identity):
                    continue
                message = log.event["message"]
                named = names_argument(message, field)
                shared = source.shared_branch(line, log_line)
                direct = depth_of_log == 0
                if level > 0:
                    joined = named and direct and log_line != line and shared > 0
                elif shared > 1:
                    joined = named or not _names_another(message, field, changed)
                else:
                    told = shared == 1 or _tells(message, change.event["new"])
                    joined = named and direct and told
                distance = abs(log.position - change.position)
                if joined and (best is None or distance < best[0]):
                    best = (distance, log)
                break
        if best is not None:
            break
    return log_line_of(best[1].event, reader) if best else None


def _names_another(message: str, field: str, changed: Collection[str]) -> bool:
    return any(names_argument(message, other) for other in changed if other != field)


def _tells(message: str, value: Any) -> bool:
    """Whether a message tells a value: by its text, or for a switch by saying which way it went."""
    if isinstance(value, bool):
        return ("enabl" if value else "disabl") in message.lower()
    text = value if isinstance(value, str) else repr(value)
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", message) is not None


def names_argument(message: str, field: str) -> bool:
    """Whether a text names an argument: by field or flag, in words (``page size``), or by what it
    switches (``mixed chunked prefill`` for ``enable_mixed_chunk``)."""
    folded = " ".join(message.lower().replace("-", " ").replace("_", " ").split())
    words = field.replace("_", " ")
    if re.search(rf"(?<!\w){re.escape(words)}(?!\w)", folded):
        return True
    stem = re.sub(r"^(enable|disable) ", "", words)
    # One word alone ("lora", "metrics") may mean anything; two and more are the switch.
    return (
        stem != words
        and " " in stem
        and re.search(rf"(?<!\w){re.escape(stem)}", folded) is not None
    )


def log_line_of(event: dict[str, Any], reader: Reader) -> LogLine:
    """One log record of the stream."""
    stack = _unhelped(event["stack"])
    frame = reader.frame(stack[0]) if stack else None
    return LogLine(event["level"], event["message"], frame)


def log_lines(events: list[dict[str, Any]], reader: Reader) -> Iterator[LogLine]:
    """All log records that SGLang's code emitted, in order."""
    return (log_line_of(e, reader) for e in events if e["kind"] == "log" and e["stack"])


def env_accesses(
    events: list[dict[str, Any]], reader: Reader, given: Mapping[str, str]
) -> Iterator[EnvAccess]:
    """Each environment variable once per operation and place, in order of first access."""
    seen: set[tuple[Any, ...]] = set()
    for event in events:
        if event["kind"] != "env":
            continue
        # SGLang's own accessors (environ.py, utils) stand between; the reader is their caller.
        outer = [f for f in event["stack"] if not _is_accessor(f)] or event["stack"]
        key = (event["name"], event["operation"], outer[0][0], outer[0][1], event["new"])
        if key in seen:
            continue
        seen.add(key)
        yield EnvAccess(
            name=event["name"],
            operation=event["operation"],
            value=event["new"],
            given=event["name"] in given,
            frame=reader.frame(outer[0]),
        )


def _is_accessor(frame: list[Any]) -> bool:
    return frame[0].endswith("srt/environ.py") or frame[2] in (
        "get_bool_env_var",
        "get_int_env_var",
        "get_env_var",
    )


def failure_of(raw: dict[str, Any] | None, reader: Reader) -> Failure | None:
    """An exception, with the source line of each frame."""
    if raw is None:
        return None
    return Failure(
        type=raw["type"],
        message=raw["message"],
        frames=tuple(reader.frame(frame) for frame in raw["frames"]),
        cause=failure_of(raw.get("cause"), reader),
    )


@dataclass(frozen=True)
class Typed:
    """How one destination was typed: the words, and where they came from."""

    words: str
    option: str
    origin: str
    parsed: Any
    times: int
    advice: str = ""
    """What to write instead, if the spelling is on its way out."""


def typed_arguments(line: dict[str, Any], launch: Launch) -> dict[str, Typed]:
    """Field -> how it was typed. ``line`` is the child's record of the parse."""
    renamed: dict[str, str] = line.get("renamed", {})
    found: dict[str, Typed] = {}
    for entry in line.get("typed", ()):
        field = renamed.get(entry["dest"], entry["dest"])
        words = words_of(line["words"], entry["options"])
        from_command = words_of(launch.argv, entry["options"])
        shown = from_command or words
        earlier = found.get(field)
        found[field] = Typed(
            words=shown[-1] if shown else str(entry["option"]),
            option=str(entry["option"] or ""),
            origin="command line" if from_command else "config file",
            parsed=entry["value"],
            times=earlier.times + 1 if earlier else 1,
            advice=_advice(entry),
        )
    return found


def _advice(entry: dict[str, Any]) -> str:
    if not entry.get("deprecated"):
        return ""
    instead = f"; write {entry['new_flag']}" if entry.get("new_flag") else ""
    return f"{entry['option']} is deprecated in this release{instead}."


def words_of(words: Any, options: list[str]) -> list[str]:
    """Each occurrence of an option among ``words``, with the values that follow it.

    An abbreviation counts, as argparse accepts it: ``--page`` for ``--page-size``.
    """
    found = []
    words = list(words)
    for position, word in enumerate(words):
        name = word.partition("=")[0]
        exact = name in options
        abbreviated = (
            name.startswith("--")
            and len(name) > 3
            and any(option.startswith(name) for option in options)
        )
        if not exact and not abbreviated:
            continue
        end = position + 1
        if "=" not in word:
            while end < len(words) and not _is_option(words[end]):
                end += 1
        found.append(" ".join(words[position:end]))
    return found


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _is_number(word)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
