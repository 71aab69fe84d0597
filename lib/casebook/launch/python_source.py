"""Python programs that start a server: lists for ``subprocess``, and strings that are split in blanks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from casebook.errors import LaunchError
from casebook.launch import shebang
from casebook.launch.analysis import OUTSIDE, Analysis, conclude
from casebook.launch.field_text import FieldText
from casebook.launch.manifests import list_items
from casebook.launch.options import options
from casebook.launch.shell_state import State
from casebook.launch.source import Source, Text
from casebook.launch.suspicion import Suspicion, error
from casebook.launch.through import Found, follow, follow_words
from casebook.launch.yaml_text import Item
from casebook.python_ast import parse

_BLANK_SPLITTERS = frozenset({"launch_server_cmd"})
"""Helpers that split a command at blanks (sglang.utils)."""


def read_python(source: Source, release: str = "0.5.11") -> Analysis:
    """Lists and strings in a Python file that start a server. Raises LaunchError if it is no Python."""
    try:
        tree = parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as problem:
        raise LaunchError(f"{source.name} is not a Python program: {problem}.") from problem
    accepts = options(release)
    found = Found()
    hits: list[Suspicion] = list(shebang.suspicions(source))
    for node in ast.walk(tree):
        more: Found | None = None
        if isinstance(node, ast.List | ast.Tuple) and _mentions(node):
            items = [
                _item(e, source)
                for e in node.elts
                if isinstance(e, ast.Constant) and isinstance(e.value, str)
            ]
            words = [FieldText(i.text) for i in items]
            more = (
                follow_words(
                    words, {}, Text.join([w.value for w in words], " "), "a list of words", OUTSIDE
                )
                if words
                else None
            )
            hits += list_items(items, bool(items) and items[0].text.text in ("bash", "sh"), accepts)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            command = node.args[0].value
            if isinstance(command, str) and re.search(r"sglang", command):
                text = _item(node.args[0], source).text
                name = _name(node.func)
                if name in _BLANK_SPLITTERS:
                    hits += _split_in_blanks(text, name)
                    joined = Text(text.text.replace("\\\n", "  ").replace("\n", " "), text.at)
                    more = follow_words(
                        [FieldText(p) for p in _parts(joined)], {}, text, name, OUTSIDE
                    )
                elif name in (
                    "system",
                    "popen",
                    "run",
                    "Popen",
                    "call",
                    "check_call",
                    "check_output",
                ):
                    more = follow(text, State(outside=OUTSIDE), "/bin/sh -c")
        if more is not None:
            found.servers += more.servers
            found.readings += more.readings
            found.others += more.others
    return conclude(source, "Python program", found, accepts, hits)


def _mentions(node: ast.List | ast.Tuple) -> bool:
    return any(
        isinstance(e, ast.Constant) and isinstance(e.value, str) and "sglang" in e.value
        for e in node.elts
    )


def _name(node: ast.expr) -> str:
    return (
        node.attr
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )


def _item(node: ast.expr, source: Source) -> Item:
    """A string constant with its characters' places."""
    assert isinstance(node, ast.Constant)
    line = source.line(node.lineno)
    start = source.offset(
        node.lineno, len(line.encode()[: node.col_offset].decode("utf-8", "replace")) + 1
    )
    last_line = source.line(node.end_lineno or node.lineno)
    end = source.offset(
        node.end_lineno or node.lineno,
        len(last_line.encode()[: node.end_col_offset].decode("utf-8", "replace")) + 1,
    )
    at, position = [], start
    for char in str(node.value):
        hit = source.text.find(char, position, end)
        at.append(hit if hit >= 0 else min(position, max(end - 1, start)))
        position = hit + 1 if hit >= 0 else position
    return Item("scalar", start, end, Text(str(node.value), at))


def _parts(text: Text) -> list[Text]:
    return [text.cut(*m.span()) for m in re.finditer(r"\S+", text.text)]


def _split_in_blanks(text: Text, name: str) -> Iterator[Suspicion]:
    match = re.search(r"'[^']*'|\"[^\"]*\"", text.text)
    if match:
        yield error(
            "split-without-shell",
            (text.at[match.start()], text.at[match.end() - 1] + 1),
            f"{name} splits the command at blanks; quotes are ordinary characters to it",
            "the server gets the quotation marks as part of the value, and a quoted blank parts the value in two",
            "start the server with subprocess and a list of words",
        )
