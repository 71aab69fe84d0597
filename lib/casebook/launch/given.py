"""The words behind a server's entry point, grouped as argparse groups them, and where they stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from casebook.launch.field_text import FieldText
from casebook.launch.options import Option, Options
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
