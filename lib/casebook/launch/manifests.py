"""Launches in compose files and Kubernetes manifests: lists of words, or text for a shell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from casebook.launch.analysis import Analysis, conclude
from casebook.launch.field_text import FieldText
from casebook.launch.invocation import Invocation
from casebook.launch.options import Options, options
from casebook.launch.source import Source, Text
from casebook.launch.suspicion import Suspicion, error
from casebook.launch.through import Found, Server, Stage, follow_words
from casebook.launch.word_split import split
from casebook.launch.wrappers import SHELLS
from casebook.launch.yaml_text import Item, documents, maps

_OUTSIDE = "the container's environment may set it"
_K8S_VARIABLE = re.compile(r"\$\$|\$\(([A-Za-z_]\w*)\)")
_SHELL_SIGNS = frozenset({"|", "||", "&&", ">", ">>", "2>&1", ";", "&", "<", "2>"})


def read_compose(source: Source, release: str = "0.5.11") -> Analysis:
    """The services of a compose file. Raises LaunchError if it is none."""
    found = Found()
    hits: list[Suspicion] = []
    accepts = options(release)
    for document in documents(source):
        services = document.get("services")
        for _, service in services.pairs if services else ():
            entry, command = service.get("entrypoint"), service.get("command")
            env = _environment(service.get("environment"))
            words = [*_compose_words(entry, hits), *_compose_words(command, hits)]
            hits.extend(_list_rules([entry, command], accepts))
            _add(found, words, env, source, "compose", accepts)
    return conclude(source, "compose file", found, accepts, hits)


def read_kubernetes(source: Source, release: str = "0.5.11") -> Analysis:
    """The containers of a Kubernetes manifest. Raises LaunchError if it is not YAML."""
    found = Found()
    hits: list[Suspicion] = []
    accepts = options(release)
    for document in documents(source):
        for one in maps(document):
            command, args = one.get("command"), one.get("args")
            parts = [p for p in (command, args) if p is not None and p.kind == "list"]
            if not parts:
                continue
            env = _environment(one.get("env"))
            words = [w for part in parts for w in _k8s_words(part, env)]
            for part in parts:
                for item in part.items:
                    hits.extend(folded(item, source))
            hits.extend(_list_rules(parts, accepts))
            _add(found, words, env, source, "kubernetes", accepts)
    return conclude(source, "Kubernetes manifest", found, accepts, hits)


def _add(
    found: Found,
    words: list[FieldText],
    env: Mapping[str, FieldText],
    source: Source,
    reader: str,
    accepts: Options,
) -> None:
    if not words:
        return
    text = Text.join([w.value for w in words], " ")
    more = follow_words(words, env, text, reader, _OUTSIDE)
    if not more.servers and bare_flags(words, accepts):
        more = bare_server(words, env, text, reader)
    found.servers += more.servers
    found.readings += more.readings
    found.others += more.others
    found.notes += more.notes
    del source


def bare_flags(words: list[FieldText], accepts: Options) -> bool:
    """Whether the words are SGLang's own flags, for an image whose entry point is the server."""
    if not words or not words[0].text.startswith("--"):
        return False
    known = [w for w in words if w.text.partition("=")[0].split(" ")[0] in accepts.by_name]
    return (
        any(w.text.partition("=")[0].split(" ")[0] in ("--model-path", "--model") for w in known)
        or len(known) > 2
    )


def bare_server(
    words: list[FieldText], env: Mapping[str, FieldText], text: Text, reader: str
) -> Found:
    """The server that an image's own entry point starts with these words."""
    invocation = Invocation(
        tuple(words), dict(env), {}, {}, max(words[0].value.start, 0), max(words[-1].value.end, 1)
    )
    entry = tuple(FieldText(Text.made(w)) for w in ("python", "-m", "sglang.launch_server"))
    server = Server(
        tuple(words),
        entry,
        dict(env),
        {},
        invocation,
        invocation,
        (Stage(reader, text),),
        ("the image's entry point",),
    )
    return Found(servers=[server])


def _environment(item: Item | None) -> dict[str, FieldText]:
    """``environment`` of compose (list or map) and ``env`` of Kubernetes (list of name and value)."""
    found: dict[str, FieldText] = {}
    if item is None:
        return found
    for key, given in item.pairs:
        found[key.text.text] = FieldText(given.text)
    for one in item.items:
        if one.kind == "map":
            name, value = one.get("name"), one.get("value")
            if name is not None:
                found[name.text.text] = (
                    FieldText(value.text)
                    if value is not None
                    else FieldText(
                        Text("", []), exact=False, reason="its value comes from the cluster"
                    )
                )
        elif "=" in one.text.text:
            name_, _, _ = one.text.text.partition("=")
            found[name_] = FieldText(one.text.cut(len(name_) + 1, len(one.text)))
    return found


def _compose_words(item: Item | None, hits: list[Suspicion]) -> list[FieldText]:
    if item is None:
        return []
    if item.kind == "list":
        return [_interpolated(one.text) for one in item.items if one.kind == "scalar"]
    hits.extend(folded(item, None))
    return [replace(_interpolated(w.value), quoted=w.quoted) for w in split(item.text)]


def _interpolated(text: Text) -> FieldText:
    """Compose's own ``$$`` and ``${NAME}``."""
    parts: list[Text] = []
    position, reason = 0, ""
    for match in re.finditer(
        r"\$\$|\$\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|\$([A-Za-z_]\w*)", text.text
    ):
        parts.append(text.cut(position, match.start()))
        position = match.end()
        if match[0] == "$$":
            parts.append(text.cut(match.start(), match.start() + 1))
            continue
        reason = f"${match[1] or match[3]} comes from compose's environment"
        if match[2] is not None:
            parts.append(text.cut(match.start(2), match.end(2)))
        else:
            parts.append(text.cut(match.start(), match.end()))
    parts.append(text.cut(position, len(text)))
    return FieldText(Text.join(parts), exact=not reason, reason=reason)


def _k8s_words(item: Item, env: Mapping[str, FieldText]) -> list[FieldText]:
    words = []
    for one in item.items:
        parts: list[Text] = []
        position, reason = 0, ""
        for match in _K8S_VARIABLE.finditer(one.text.text):
            parts.append(one.text.cut(position, match.start()))
            position = match.end()
            if match[0] == "$$":
                parts.append(one.text.cut(match.start(), match.start() + 1))
            elif match[1] in env:
                parts.append(env[match[1]].value)
                reason = env[match[1]].reason
            else:
                parts.append(one.text.cut(match.start(), match.end()))
        parts.append(one.text.cut(position, len(one.text)))
        words.append(FieldText(Text.join(parts), exact=not reason, reason=reason))
    return words


def folded(item: Item, source: Source | None) -> Iterator[Suspicion]:
    """A folded scalar (``>``) puts a blank where the backslash expects a line's end."""
    del source
    value = item.text.text
    if item.style != ">":
        return
    for match in re.finditer(r"\\ (?=[ \t]*\S)|\\$", value):
        at = item.text.at[match.start()]
        flags = tuple(re.findall(r"--[\w-]+", value[match.start() :]))
        yield error(
            "folded-scalar-continuation",
            (at, at + 1),
            "a folded YAML scalar (`>`) turns this line's end into a blank; the backslash then quotes the blank",
            f"the next word begins with a blank: `{value[match.end() - 1 : match.end() + 24].rstrip()}` is no flag; "
            f"{len(flags)} flags are refused or lost",
            "use a literal scalar (`|`), or take the backslashes away",
            flags,
        )
        break


def _list_rules(items: Iterable[Item | None], accepts: Options) -> Iterator[Suspicion]:
    """A list's items are words as they are: nobody splits them and no shell reads them."""
    listed = [i for item in items if item is not None and item.kind == "list" for i in item.items]
    texts = [i.text.text for i in listed]
    shell = bool(texts) and texts[0].rpartition("/")[2] in SHELLS
    yield from list_items(listed, shell, accepts)
    if not shell:
        for one in listed:
            if one.text.text in _SHELL_SIGNS:
                yield error(
                    "no-shell-here",
                    (one.start, one.end),
                    f"`{one.text.text}` is a list item, and no shell reads the list",
                    "the server gets it as an argument and refuses it",
                    'run a shell: ["bash", "-c", "..."]',
                )


def list_items(listed: list[Item], shell: bool, accepts: Options) -> Iterator[Suspicion]:
    """Items that hold several words, where each item is one argument."""
    for number, one in enumerate(listed):
        text = one.text.text
        if shell and number:
            continue
        first = text.strip().split(" ")[0] if text.strip() else ""
        whole = re.match(r"(?:\S*/)?(?:python3?|sglang|vllm|trtllm-serve|bash|sh)\s+-", text)
        short = re.match(r"-[A-Za-z] \S", text)
        if whole and number == 0:
            yield error(
                "several-words-in-one",
                (one.start, one.end),
                f"the item `{text[:50]}` is one argument; nobody splits it",
                "the container looks for a program of that whole name; no flag reaches the server",
                "make each word an item of its own, or run it through `bash -c`",
                tuple(re.findall(r"--[\w-]+", text)),
            )
        elif short:
            yield error(
                "several-words-in-one",
                (one.start, one.end),
                f"the item `{text[:50]}` is one argument; nobody splits it",
                "the program gets the option with a value that begins with a blank",
                "make option and value two items",
                (first,),
            )
    del accepts
