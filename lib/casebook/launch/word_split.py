"""Words as a list-less launcher splits them (compose's ``command``, systemd's ``ExecStart``): blanks and
quotes, no shell. ``shlex`` does the same but forgets where each word stood."""

from __future__ import annotations

from casebook.errors import LaunchError
from casebook.launch.field_text import FieldText
from casebook.launch.source import Text


def split(text: Text) -> list[FieldText]:
    """The words of ``text``. Raises LaunchError for a quote that is not closed."""
    words: list[FieldText] = []
    chars: list[str] = []
    at: list[int] = []
    opened = quoted = False
    quote = ""
    position = 0

    def close() -> None:
        nonlocal opened, quoted
        if opened:
            words.append(FieldText(Text("".join(chars), list(at)), quoted=quoted))
        chars.clear()
        at.clear()
        opened = quoted = False

    while position < len(text):
        char, where = text.text[position], text.at[position]
        position += 1
        if quote:
            if char == quote:
                quote = ""
            elif (
                char == "\\" and quote == '"' and text.text[position : position + 1] in ('"', "\\")
            ):
                chars.append(text.text[position])
                at.append(text.at[position])
                position += 1
            else:
                chars.append(char)
                at.append(where)
        elif char in "'\"":
            quote, opened, quoted = char, True, True
        elif char == "\\" and position < len(text):
            following = text.text[position]
            opened = quoted = True
            if following != "\n":
                chars.append(following)
                at.append(text.at[position])
            elif not chars:
                opened = quoted = False
            position += 1
        elif char.isspace():
            close()
        else:
            chars.append(char)
            at.append(where)
            opened = True
    if quote:
        raise LaunchError(
            f"A {'double' if quote == chr(34) else 'single'} quote in the command is not closed."
        )
    close()
    return words
