"""Rules about values: quotes that are gone or too many, JSON that is none, several words in one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from casebook.launch.field_text import FieldText
from casebook.launch.given import Given, Where, looks_json
from casebook.launch.options import Options
from casebook.launch.rules_surroundings import ENVIRONMENT
from casebook.launch.suspicion import Suspicion, error
from casebook.launch.through import Server

_JSON_OPTION = re.compile(r"json|config$|overrides|kwargs|limit-mm|preferred-sampling|extra-config")


def is_json(text: str) -> bool:
    """Whether a value is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def eaten_quotes(server: Server, where: Where) -> Iterator[Suspicion]:
    """Words that were whole for an outer shell and are not for the server."""
    if len(server.stages) < 2:
        return
    texts = {a.text for a in server.arguments} | {
        v for a in server.arguments for v in (a.text.partition("=")[2],)
    }
    outer_words = server.invocation.words
    if len([w for w in outer_words if re.search(r"sglang|launch_server", w.text)]) and any(
        re.search(r"\s.*(?:sglang|launch_server)", w.text) for w in outer_words
    ):
        return  # the command went as one text, quoted as a whole
    for word in outer_words:
        if not word.quoted or not re.search(r"[\s\"'\\${}*?;&|<>()#~]", word.text):
            continue
        if word.text in texts or not word.text.strip():
            continue
        inner = " ".join(a.text for a in server.arguments)
        reader = server.stages[1].reader
        yield error(
            "quotes-eaten",
            where(word),
            f"`{reader}` joins its words with blanks and a second shell reads them again; this word's quotes are gone by then",
            f"the server gets: {inner[:120]}",
            "quote the whole remote command once more (`ssh host 'command'`), use a here-document with a quoted "
            "delimiter, or `printf %q` / `${var@Q}` for each word",
        )


def broken_json(
    server: Server, options_given: Sequence[Given], where: Where
) -> Iterator[Suspicion]:
    for one in options_given:
        values = [v.text for v in one.values]
        if not values:
            continue
        text = values[0]
        jsonish = bool(_JSON_OPTION.search(one.name)) and ":" in text and text[:1] in "{['\""
        if (
            not looks_json(text)
            and not jsonish
            and not (text[:1] in "'\"" and looks_json(text[1:]))
        ):
            continue
        if is_json(text) or not one.values[0].exact:
            continue
        if text[:1] in "'\"":
            yield _literal_quotes(one.values[0], one.name, where)
            continue
        yield error(
            "json-lost-quotes",
            where(one.values[0]),
            f"the value of {one.name} was JSON and arrives as `{text[:60]}`",
            "the shell took its quotes away"
            + (" and split it at its blanks" if _is_open(text) else "")
            + "; SGLang's JSON parser refuses it, or the rest is refused as unknown arguments",
            f'put the whole value in single quotes: {one.name} \'{{"key": "value"}}\'',
            (one.name,),
        )
    for word in server.arguments:  # '{"a":1,"b":2}' without quotes: two words by brace expansion
        if re.fullmatch(r"\w[\w.-]*:\S+", word.text) and _came_from_braces(word, server):
            yield error(
                "json-lost-quotes",
                where(word),
                f"bash expanded the braces of an unquoted JSON value; a piece arrives as `{word.text[:60]}`",
                "the server gets several words, none of which is JSON",
                "put the whole value in single quotes",
            )
            break


def _is_open(text: str) -> bool:
    return text.count("{") != text.count("}") or text.count("[") != text.count("]")


def _came_from_braces(word: FieldText, server: Server) -> bool:
    first = word.value.start
    if first < 0:
        return False
    root = server.stages[0].text
    try:
        position = list(root.at).index(first)
    except ValueError:
        return False
    before = root.text[max(0, position - 2) : position]
    return "{" in before or '{"' in before


def _literal_quotes(word: FieldText, name: str, where: Where) -> Suspicion:
    return error(
        "literal-quotes",
        where(word),
        f"the value of {name or 'this word'} begins with a quotation mark that no shell will take away: `{word.text[:50]}`",
        "quotes inside a variable, an array's element or a list's item are ordinary characters; the server gets them "
        "as part of the value",
        'keep arguments in a bash array and pass it as "${ARGS[@]}", without quotes inside the quotes',
        (name,) if name else (),
    )


def odd_words(server: Server, options: Options, where: Where, eaten: bool) -> Iterator[Suspicion]:
    previous = ""
    for word in server.arguments:
        text = word.text
        name = text.partition("=")[0]
        bare = text.strip()
        if bare.startswith("--") and re.search(r"\s", name.strip()) and not _is_prose(bare):
            flag = bare.split()[0]
            yield error(
                "several-words-in-one",
                where(word),
                f"`{bare[:60]}` is one argument with a blank inside",
                f"the parser looks for an option of that whole name; {flag} is not set",
                "make the flag and its value two words (two list items)",
                (flag,),
            )
        elif bare.startswith("-") and text != bare and bare:
            yield error(
                "padded-word",
                where(word),
                f"the argument `{text[:60]!s}` has a blank at its {'start' if text[:1].isspace() else 'end'}",
                f"the parser does not know it as {bare.partition('=')[0]}",
                "take the blank away",
                (bare.partition("=")[0],),
            )
        elif (
            text[:1] in "'\""
            and len(text) > 1
            and not eaten
            and not looks_json(text[1:])
            and not word.text[1:2].isspace()
        ):
            yield _literal_quotes(word, previous, where)
        elif text[:1] in "'\"" and previous == "" and looks_json(text[1:]):
            yield _literal_quotes(word, "", where)
        elif (
            re.match(r"[A-Z][A-Z0-9_]+=", text)
            and ENVIRONMENT.fullmatch(name)
            and not options.resolve(previous)
        ):
            yield error(
                "assignment-as-argument",
                where(word),
                f"{name} is set behind the command's name",
                "it is an argument there, not an environment variable; the parser refuses it",
                "put it in front of the command, or export it",
            )
        previous = name if text.startswith("--") and "=" not in text else ""


def _is_prose(text: str) -> bool:
    return "=" in text and not re.search(r"\s", text.partition("=")[0].strip())
