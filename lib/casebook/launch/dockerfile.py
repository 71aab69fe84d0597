"""The server that a Dockerfile's ENTRYPOINT and CMD start."""

from __future__ import annotations

import io
import json
import re

from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]

from casebook.errors import LaunchError
from casebook.launch.analysis import OUTSIDE, Analysis, conclude
from casebook.launch.field_text import FieldText
from casebook.launch.manifests import bare_flags, bare_server, list_items
from casebook.launch.options import options
from casebook.launch.shell_state import State, Variable
from casebook.launch.source import Source, Text
from casebook.launch.suspicion import Suspicion, warning
from casebook.launch.through import Found, follow, follow_words
from casebook.launch.word_split import split
from casebook.launch.yaml_text import Item, documents


def read_dockerfile(source: Source, release: str = "0.5.11") -> Analysis:
    """The last stage's ENTRYPOINT and CMD. Raises LaunchError if there is neither."""
    accepts = options(release)
    parser = DockerfileParser(fileobj=io.BytesIO(source.text.encode()), cache_content=True)
    env: dict[str, FieldText] = {}
    chosen: dict[str, tuple[int, int]] = {}
    try:
        structure = parser.structure
    except Exception as error:  # the parser raises what it likes on broken input
        raise LaunchError(f"{source.name} cannot be read as a Dockerfile: {error}.") from error
    for step in structure:
        name = step["instruction"].upper()
        first, last = _body(source, step)
        if name == "FROM":
            env, chosen = {}, {}
        elif name == "ENV":
            env.update(_environment(source.whole().cut(first, last)))
        elif name in ("CMD", "ENTRYPOINT"):
            chosen[name] = (first, last)
            if name == "ENTRYPOINT":
                chosen.pop("CMD", None)
    if not chosen:
        raise LaunchError(f"{source.name} has neither CMD nor ENTRYPOINT, so it starts nothing.")
    hits: list[Suspicion] = []
    words: list[FieldText] = []
    for name in ("ENTRYPOINT", "CMD"):
        if name not in chosen:
            continue
        text = source.whole().cut(*chosen[name])
        items = _exec_form(text, source)
        if items is None:
            if text.text.lstrip().startswith("["):
                hits.append(
                    warning(
                        "exec-form-not-json",
                        (text.start, text.start + 1),
                        f"{name} looks like a list, but is not JSON",
                        "Docker hands the brackets and quotes to /bin/sh as text",
                        "use double quotes and no trailing comma",
                    )
                )
            state = State(outside=OUTSIDE, name="/bin/sh -c")
            state.variables = {n: Variable((v,), exported=True) for n, v in env.items()}
            return conclude(
                source, "Dockerfile", follow(_joined(text), state, "/bin/sh -c"), accepts, hits
            )
        hits += list_items(
            items, bool(items) and items[0].text.text.rpartition("/")[2] in ("sh", "bash"), accepts
        )
        words += [FieldText(i.text) for i in items]
    whole = Text.join([w.value for w in words], " ")
    found: Found = follow_words(words, env, whole, "exec form", OUTSIDE)
    if not found.servers and bare_flags(words, accepts):
        found = bare_server(words, env, whole, "exec form")
    return conclude(source, "Dockerfile", found, accepts, hits)


def _body(source: Source, step: dict[str, object]) -> tuple[int, int]:
    """Where an instruction's value stands."""
    first = source.offset(int(str(step["startline"])) + 1)
    last = source.offset(int(str(step["endline"])) + 2)
    if int(str(step["endline"])) + 2 > source.lines:
        last = len(source.text)
    match = re.match(r"\s*\w+\s+", source.text[first:last])
    return first + (match.end() if match else 0), last


def _joined(text: Text) -> Text:
    """Without the comment lines that Docker itself takes out of a continued instruction."""
    keep = [i for i in range(len(text)) if not _in_comment(text.text, i)]
    return Text("".join(text.text[i] for i in keep), [text.at[i] for i in keep])


def _in_comment(text: str, position: int) -> bool:
    start = text.rfind("\n", 0, position) + 1
    return start > 0 and text[start:].lstrip(" \t").startswith("#")


def _exec_form(text: Text, source: Source) -> list[Item] | None:
    body = text.text.replace("\\\n", "  ")
    try:
        values = json.loads(body)
    except ValueError:
        return None
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        return None
    padded = _blanked(source.text[: text.at[0]]) + body
    found = documents(Source(source.name, padded))  # JSON is YAML, and YAML tells the places
    return list(found[0].items)


def _blanked(text: str) -> str:
    """As many characters and lines, all blank: what follows keeps its offsets."""
    return re.sub(r"[^\n]", " ", text)


def _environment(text: Text) -> dict[str, FieldText]:
    found: dict[str, FieldText] = {}
    words = split(text)
    if words and "=" not in words[0].text:  # ENV name value
        name, _, value = text.text.partition(" ")
        first = len(name) + 1
        return {name: FieldText(text.cut(first, first + len(value.rstrip())))}
    for word in words:
        name, equals, _ = word.text.partition("=")
        if equals:
            found[name] = FieldText(word.value.cut(len(name) + 1, len(word.value)))
    return found
