"""The words behind a server's entry point, grouped as argparse groups them, and where they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from casebook.launch.field_text import FieldText
from casebook.launch.model import Launch
from casebook.launch.options import Option, Options
from casebook.launch.secrets import REDACTED, Redactor, is_secret_name
from casebook.launch.source import Text
from casebook.launch.through import Server


@dataclass(frozen=True)
class Given:
    """One option as it stands among a server's words."""

    name: str
    option: Option | None
    word: FieldText
    values: tuple[FieldText, ...]
    glued: bool
    """``--name=value``."""


def given(server_words: Sequence[FieldText], options: Options) -> list[Given]:
    """The words grouped as argparse would: an option and the values behind it."""
    found: list[Given] = []
    position = 0
    while position < len(server_words):
        word = server_words[position]
        position += 1
        if not word.text.startswith("-") or not re.match(r"--?[A-Za-z]", word.text):
            continue
        name, equals, _ = word.text.partition("=")
        option = options.resolve(name)
        values: list[FieldText] = []
        if equals:
            values.append(word.behind(len(name) + 1))
        else:
            limit = {"none": 0, "one": 1, "optional": 1, "many": 10_000}.get(
                option.takes if option else "one", 1
            )
            while position < len(server_words) and len(values) < limit:
                if re.match(r"--?[A-Za-z]", server_words[position].text):
                    break
                values.append(server_words[position])
                position += 1
        found.append(Given(name, option, word, tuple(values), bool(equals)))
    return found


def typed_fields(launch: Launch, options: Options) -> dict[str, str]:
    """Argument -> value as typed, by whatever spelling the release takes; the last one counts.

    A switch is ``True``; secrets are marks. An option that the release does not know stands under its
    own name; words that no option takes are left out.
    """
    redact = Redactor.of(launch)
    found: dict[str, str] = {}
    for one in given([FieldText(Text.made(word)) for word in launch.argv], options):
        name = one.option.field if one.option else one.name.lstrip("-").replace("-", "_")
        if one.option is not None and one.option.takes == "none":
            found[name] = "True"
        elif is_secret_name(name):
            found[name] = REDACTED
        else:
            found[name] = redact.text(" ".join(value.text for value in one.values))
    return found


class Where:
    """Root offsets of a word, or of the command where the word is made up."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def __call__(self, word: FieldText | None = None) -> tuple[int, int]:
        if word is not None and word.value.start >= 0:
            first, last = word.value.start, word.value.end
            return (first, last) if last > first else (first, first + 1)
        return self.server.invocation.start, self.server.invocation.end


def looks_json(text: str) -> bool:
    """Whether a value was meant as a JSON object or list."""
    return bool(
        re.match(r"\s*[{\[]\s*(?:[\"'}\]{\[]|[A-Za-z_][\w.-]*\s*:)", text)
    ) and not text.startswith(("{{", "{%"))
