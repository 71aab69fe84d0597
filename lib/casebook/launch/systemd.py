"""systemd units: ``ExecStart`` is split at blanks with quotes, and no shell reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from casebook.errors import LaunchError
from casebook.launch.analysis import Analysis, conclude
from casebook.launch.field_text import FieldText
from casebook.launch.options import options
from casebook.launch.source import Source, Text
from casebook.launch.suspicion import Suspicion, error, warning
from casebook.launch.through import Found, follow_words
from casebook.launch.word_split import split
from casebook.launch.wrappers import SHELLS

_SETTING = re.compile(r"[ \t]*([A-Za-z]+)[ \t]*=[ \t]*")
_SIGNS = frozenset({"|", "||", "&&", ">", ">>", "2>&1", "&", "<", "2>"})


def settings(source: Source) -> Iterator[tuple[str, str, Text]]:
    """``(section, name, value)`` in order, continued lines joined as systemd joins them."""
    section, whole, position = "", source.whole(), 0
    while position < len(source.text):
        end = source.text.find("\n", position)
        end = len(source.text) if end < 0 else end
        line = source.text[position:end]
        pieces = [(position, end)]
        while (
            line.endswith("\\")
            and not line.lstrip().startswith(("#", ";"))
            and end < len(source.text)
        ):
            first = end + 1
            end = source.text.find("\n", first)
            end = len(source.text) if end < 0 else end
            line = source.text[first:end]
            if not line.lstrip().startswith(("#", ";")):
                pieces.append((first, end))
            else:
                line = "\\"  # a comment between continued lines is skipped
        text = Text.join([_without_backslash(whole.cut(*p)) for p in pieces], " ")
        position = end + 1
        if match := re.match(r"\s*\[(.+)\]\s*$", text.text):
            section = match[1]
        elif not text.text.lstrip().startswith(("#", ";")) and (match := _SETTING.match(text.text)):
            yield section, match[1], text.cut(match.end(), len(text))


def _without_backslash(line: Text) -> Text:
    return line.cut(0, len(line) - 1) if line.text.endswith("\\") else line


def read_unit(source: Source, release: str = "0.5.11") -> Analysis:
    """The server of a unit's ExecStart. Raises LaunchError if it has none."""
    env: dict[str, FieldText] = {}
    hits: list[Suspicion] = []
    found = Found()
    outside = ""
    starts: list[Text] = []
    for section, name, value in settings(source):
        if section != "Service":
            continue
        if name == "Environment":
            hits += _environment(value, env)
        elif name == "EnvironmentFile":
            outside = "the unit's EnvironmentFile may set it"
        elif name == "ExecStart":
            starts = [*starts, value] if value.text.strip() else []
    if not starts:
        raise LaunchError(f"{source.name} has no ExecStart in a [Service] section.")
    for value in starts:
        words = [w for word in split(value) for w in _expanded(word, env, outside)]
        if not words:
            continue
        first = words[0].value
        prefix = len(first.text) - len(first.text.lstrip("@-:+!"))
        words[0] = FieldText(first.cut(prefix, len(first)))
        if words[0].text.rpartition("/")[2] not in SHELLS:
            hits += _no_shell(words)
        more = follow_words(words, env, value, "systemd", outside)
        found.servers += more.servers
        found.readings += more.readings
        found.others += more.others
        found.notes += more.notes
    return conclude(source, "systemd unit", found, options(release), hits)


def _environment(value: Text, env: dict[str, FieldText]) -> Iterator[Suspicion]:
    previous = ""
    for word in split(value):
        name, equals, _ = word.text.partition("=")
        if equals and name.isidentifier():
            env[name] = FieldText(word.value.cut(len(name) + 1, len(word.value)))
            previous = name
            continue
        yield error(
            "systemd-environment-unquoted",
            (word.value.start, word.value.end),
            f"`{word.text[:40]}` is not part of {previous or 'a variable'}: systemd splits Environment= at blanks",
            "systemd ignores it (`Invalid environment assignment, ignoring`); the variable ends before it",
            f'put the whole assignment in quotes: Environment="{previous or "NAME"}=..."',
        )


def _expanded(word: FieldText, env: dict[str, FieldText], outside: str) -> list[FieldText]:
    """``$NAME`` alone is split into words, ``${NAME}`` is one piece of text; unset is nothing."""
    if match := re.fullmatch(r"\$(\w+)", word.text):
        if match[1] in env:
            return split(env[match[1]].value)
        reason = outside or "the service manager's environment may set it"
        return [FieldText(word.value, exact=False, reason=reason)] if outside else []
    parts: list[Text] = []
    position, reason = 0, ""
    for match in re.finditer(r"\$\{(\w+)\}", word.text):
        parts.append(word.value.cut(position, match.start()))
        position = match.end()
        if match[1] in env:
            parts.append(env[match[1]].value)
        else:
            reason = outside or f"${match[1]} is not set in the unit"
    parts.append(word.value.cut(position, len(word.value)))
    return [FieldText(Text.join(parts), exact=not reason, reason=reason, quoted=word.quoted)]


def _no_shell(words: list[FieldText]) -> Iterator[Suspicion]:
    for word in words:
        if word.text in _SIGNS and not word.quoted:
            yield error(
                "no-shell-here",
                (word.value.start, word.value.end),
                f"`{word.text}` stands in ExecStart, and no shell reads it",
                "the server gets it and what follows as arguments",
                "run a shell: ExecStart=/bin/bash -c '...'",
            )
            return
        if word.text.startswith("$("):
            yield warning(
                "no-shell-here",
                (word.value.start, word.value.end),
                f"`{word.text[:30]}` is not run: no shell reads ExecStart",
                "the server gets the text as it is",
                "run a shell: ExecStart=/bin/bash -c '...'",
            )
            return
