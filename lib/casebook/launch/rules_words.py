"""Rules about the words that reach a server: what the parser will make of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from casebook.errors import nearest
from casebook.launch.expand import FieldText
from casebook.launch.options import Option, Options
from casebook.launch.suspicion import Suspicion, error, note, warning
from casebook.launch.through import Server

_BOOLEANS = frozenset({"true", "false", "yes", "no", "on", "off", "0", "1"})
ENVIRONMENT = re.compile(
    r"(?:SGLANG|SGL|CUDA|NCCL|HF|TORCH|PYTORCH|TRITON|FLASHINFER|NVIDIA|HIP|ROCR|AITER|GLOO|UCX|NVSHMEM"
    r"|TRANSFORMERS|HUGGINGFACE|VLLM|DG|MC|OMP|TOKENIZERS)_\w+|PYTHONPATH|LD_LIBRARY_PATH|OMP_NUM_THREADS"
)
_NAME_IN_TEXT = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_JSON_OPTION = re.compile(r"json|config$|overrides|kwargs|limit-mm|preferred-sampling|extra-config")


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
            values.append(_behind_equals(word, len(name) + 1))
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


def _behind_equals(word: FieldText, first: int) -> FieldText:
    from dataclasses import replace

    return replace(word, value=word.value.cut(first, len(word.value)))


def suspicions(server: Server, options: Options, used: frozenset[str]) -> Iterator[Suspicion]:
    """All faults in the words and the environment of one server."""
    where = _Where(server)
    options_given = given(server.arguments, options)
    eaten = list(_eaten_quotes(server, where))
    yield from eaten
    if not eaten:
        yield from _broken_json(server, options_given, where)
    yield from _odd_words(server, options, where, bool(eaten))
    yield from _duplicates(options_given, where)
    yield from _names(options_given, options, where)
    yield from _switch_values(server, options, where)
    yield from _config_form(options_given, server, where)
    yield from _empty(server, options)
    yield from _not_expanded(server, where)
    yield from _environment(server, where, used)
    yield from _in_front(server, options, where)


class _Where:
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


def is_json(text: str) -> bool:
    """Whether a value is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _eaten_quotes(server: Server, where: _Where) -> Iterator[Suspicion]:
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


def _broken_json(
    server: Server, options_given: Sequence[Given], where: _Where
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


def _literal_quotes(word: FieldText, name: str, where: _Where) -> Suspicion:
    return error(
        "literal-quotes",
        where(word),
        f"the value of {name or 'this word'} begins with a quotation mark that no shell will take away: `{word.text[:50]}`",
        "quotes inside a variable, an array's element or a list's item are ordinary characters; the server gets them "
        "as part of the value",
        'keep arguments in a bash array and pass it as "${ARGS[@]}", without quotes inside the quotes',
        (name,) if name else (),
    )


def _odd_words(server: Server, options: Options, where: _Where, eaten: bool) -> Iterator[Suspicion]:
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


def _duplicates(options_given: Sequence[Given], where: _Where) -> Iterator[Suspicion]:
    first: dict[str, Given] = {}
    for one in options_given:
        key = one.option.field if one.option else one.name
        if one.option is None and not one.name.startswith("--"):
            continue
        before = first.get(key)
        first[key] = one
        if before is None:
            continue
        old, new = (" ".join(v.text for v in g.values) for g in (before, one))
        if old == new:
            yield note(
                "duplicate-flag",
                where(one.word),
                f"{one.name} is given twice, with the same value",
                "none: the last one counts",
                "remove one of them",
                (one.name,),
            )
            continue
        yield warning(
            "duplicate-flag",
            where(before.word),
            f"{before.name} is given here and again as `{one.name} {new}`".rstrip(),
            f"the last one wins without a word: {new or 'the switch'} is used and {old or 'this one'} is lost",
            "remove one of the two",
            (one.name,),
        )


def _names(options_given: Sequence[Given], options: Options, where: _Where) -> Iterator[Suspicion]:
    for one in options_given:
        name = one.name
        if (
            re.search(r"\s", name)
            or not name.startswith("--")
            or not one.word.exact
            or not name.isascii()
        ):
            continue
        if options.get(name):
            continue
        fits = options.completions(name)
        if len(fits) == 1:
            yield warning(
                "abbreviated-flag",
                where(one.word),
                f"{name} is an abbreviation that argparse completes to {fits[0]}",
                "a later release that has a second option of that beginning refuses it as ambiguous, or takes another",
                f"write {fits[0]}",
                (name,),
            )
        elif fits:
            yield error(
                "ambiguous-flag",
                where(one.word),
                f"{name} may stand for {', '.join(fits[:4])}",
                "argparse refuses the launch",
                "write the option in full",
                (name,),
            )
        elif name in options.elsewhere:
            first, last = options.elsewhere[name]
            yield warning(
                "flag-of-another-release",
                where(one.word),
                f"SGLang {options.release} has no {name}; releases {first} to {last} have it",
                f"on {options.release} the parser refuses the launch",
                "ask which release runs (`python -c 'import sglang; print(sglang.__version__)'`)",
                (name,),
            )
        else:
            near = options.near(name)
            yield error(
                "unknown-flag",
                where(one.word),
                f"SGLang {options.release} has no option {name[:60]}",
                "the parser refuses the launch",
                f"write {' or '.join(near)}" if near else "look it up in `--help`",
                (name,),
            )


def _switch_values(server: Server, options: Options, where: _Where) -> Iterator[Suspicion]:
    for number, word in enumerate(server.arguments[:-1]):
        option = options.get(word.text)
        value = server.arguments[number + 1]
        if option is None or option.takes != "none" or value.text.lower() not in _BOOLEANS:
            continue
        off = value.text.lower() in ("false", "no", "off", "0")
        yield error(
            "value-after-switch",
            where(value),
            f"{word.text} is a switch and takes no value",
            f"the parser refuses `{value.text}`"
            + (f"; {word.text} cannot be turned off this way" if off else ""),
            f"remove {word.text} and its value" if off else f"remove `{value.text}`",
            (word.text,),
        )
    for word in server.arguments:
        name, equals, behind = word.text.partition("=")
        option = options.get(name)
        if equals and option and option.takes == "none":
            yield error(
                "value-after-switch",
                where(word),
                f"{name} is a switch and takes no value",
                f"the parser refuses `={behind}`",
                f"write {name} alone, or leave it out",
                (name,),
            )


def _config_form(
    options_given: Sequence[Given], server: Server, where: _Where
) -> Iterator[Suspicion]:
    for one in options_given:
        if one.name != "--config":
            continue
        if one.glued:
            yield error(
                "config-equals-form",
                where(one.word),
                "SGLang looks for the word `--config` alone; `--config=FILE` it does not see",
                "the whole file is ignored without a word",
                "write `--config FILE`, as two words",
                ("--config",),
            )
        elif not one.values:
            yield error(
                "config-without-file",
                where(one.word),
                "no file is named behind --config",
                "SGLang stops: no config file specified",
                "name the file",
                ("--config",),
            )
    del server


def _empty(server: Server, options: Options) -> Iterator[Suspicion]:
    words = server.arguments
    assigned = set(server.left_behind) | set(server.env)
    for number, word in enumerate(words):
        option = options.resolve(word.text) if word.text.startswith("--") else None
        if option is None or option.takes not in ("one",):
            continue
        value = words[number + 1] if number + 1 < len(words) else None
        missing = value is None or (value.text.startswith("--") and not value.quoted)
        if not missing and (value is None or value.text):
            continue
        behind = word.value.end
        empties = [e for e in server.inner.empties if behind <= e.at] or [
            e for e in server.invocation.empties if behind <= e.at
        ]
        if not empties:
            continue
        empty = min(empties, key=lambda e: e.at)
        if not missing and value is not None and value.exact and not empty.quoted:
            continue
        near = nearest(empty.name, assigned - {empty.name}, 1)
        at = (empty.at, empty.at + len(empty.name) + 1)
        meaning = (
            f"{word.text} loses its value and the parser refuses it, or takes the next word for it"
            if missing
            else f"{word.text} gets an empty text"
        )
        mend = (
            f"did you mean ${near[0]}?"
            if near
            else f"set {empty.name}, or write ${{{empty.name}:?}} so that the script stops"
        )
        what = f"${empty.name} is {'empty' if empty.known else 'not set in the script'}"
        make = error if empty.known or near else warning
        yield make("empty-variable", at, what, meaning, mend, (word.text,))


def _not_expanded(server: Server, where: _Where) -> Iterator[Suspicion]:
    for word in server.arguments:
        if re.match(r"(?:--[\w-]+=)?~(?:/|$)", word.text) and not word.reason.startswith("~"):
            yield error(
                "tilde-not-expanded",
                where(word),
                f"`{word.text[:60]}` begins with a tilde that no shell has expanded",
                "the server looks for a folder named `~`",
                'write "$HOME/..." in double quotes, or the whole path',
            )
        match = _NAME_IN_TEXT.search(word.text)
        if match and word.exact and not looks_json(word.text) and "{{" not in word.text:
            yield error(
                "variable-not-expanded",
                where(word),
                f"`{word.text[:60]}` reaches the server with its dollar sign",
                "no shell expands it: it stands in single quotes, behind a backslash, or where no shell reads",
                "use double quotes, or let a shell run the command",
            )


def _environment(server: Server, where: _Where, used: frozenset[str]) -> Iterator[Suspicion]:
    for name, value in server.left_behind.items():
        if not ENVIRONMENT.fullmatch(name) or name in server.env:
            continue
        at = (
            (max(value.value.start - len(name) - 1, 0), value.value.end)
            if value.value.start >= 0
            else where()
        )
        if server.ended_at:
            yield warning(
                "environment-not-passed",
                at,
                f"{name} is set in the script, but the server is started through `{server.ended_at}`",
                f"`{server.ended_at}` starts it with an environment of its own; the variable does not arrive",
                f"pass it on: {_pass_on(server.ended_at, name)}",
            )
        elif name not in used:
            yield error(
                "export-missing",
                at,
                f"{name} is set but not exported",
                "it is a variable of the shell only; the server does not get it",
                f"write `export {name}=...`, or put it on the server's own line",
            )


def _pass_on(program: str, name: str) -> str:
    if program in ("docker", "podman", "nerdctl"):
        return f"`{program} run -e {name} ...`"
    if program in ("sudo", "doas"):
        return f"`sudo --preserve-env={name} ...`"
    return f"set {name} inside the remote command"


def _in_front(server: Server, options: Options, where: _Where) -> Iterator[Suspicion]:
    """SGLang's flags among the words of a wrapper or of Python."""
    for word in (*server.before_entry, *server.entry):
        name = word.text.partition("=")[0]
        if name in options.by_name and len(name) > 6 and name not in COMMON_NAMES:
            yield _wrong_process(
                word, name, server.via[-1] if server.via else "python", where(word)
            )


COMMON_NAMES = frozenset(
    [
        "--help",
        "--version",
        "--config",
        "--host",
        "--port",
        "--device",
        "--dtype",
        "--log-level",
        "--model",
        "--tokenizer",
        "--revision",
        "--nnodes",
        "--node-rank",
        "--model-path",
        "--served-model-name",
        "--api-key",
        "--quantization",
        "--random-seed",
        "--base-url",
        "--tool-call-parser",
        "--reasoning-parser",
        "--chat-template",
        "--trust-remote-code",
        "--context-length",
    ]
)
FILTERS = frozenset(
    [
        "tee",
        "cat",
        "grep",
        "egrep",
        "tail",
        "head",
        "sed",
        "awk",
        "ts",
        "sleep",
        "wait",
        "echo",
        "mkdir",
        "cp",
        "mv",
        "cd",
        "pv",
        "less",
    ]
)


def _wrong_process(word: FieldText, name: str, process: str, at: tuple[int, int]) -> Suspicion:
    del word
    return error(
        "flag-to-wrong-process",
        at,
        f"{name} is an option of SGLang's server, but stands among the words of `{process}`",
        f"`{process}` gets it, the server does not",
        f"move {name} behind the server's entry point, before any `|`, `&` or `;`",
        (name,),
    )


def others(name: str, words: Sequence[FieldText], options: Options) -> Iterator[Suspicion]:
    """SGLang's flags among the words of a program that is no server at all (``tee``)."""
    if name not in FILTERS:
        return
    for word in words[1:]:
        flag = word.text.partition("=")[0]
        if flag in options.by_name and len(flag) > 6 and flag not in ("--help", "--version"):
            at = (word.value.start, word.value.end)
            if at[0] >= 0:
                yield _wrong_process(word, flag, name, at)


_OVERRIDE = re.compile(r"\+{0,2}(?:\w+\.)*engine_kwargs\.sglang\.(\w+)=(?i:false)")


def overrides(words: Sequence[FieldText]) -> Iterator[Suspicion]:
    """``engine_kwargs.sglang.X=False``: a trainer builds SGLang's arguments from it and drops what is false.

    No server stands in such a script; the trainer starts it (verl, before its pull request 7508).
    """
    for word in words[1:]:
        found = _OVERRIDE.fullmatch(word.text)
        if found and word.value.start >= 0:
            yield warning(
                "override-false-dropped",
                (word.value.start, word.value.end),
                f"`{word.text[-60:]}` passes False through another program's overrides",
                "launchers that keep only what is true of such a table leave it out: "
                f"{found[1]} stays at its default",
                "check the server's own log for the value, or set the opposite option",
                (f"--{found[1].replace('_', '-')}",),
            )
