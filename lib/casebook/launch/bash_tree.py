"""tree-sitter's reading of bash: nodes in characters, and a word as units ready for expansion.

tree-sitter-bash gives structure (commands, redirections, quotes, expansions). The literal text of a
word is what lies between the expansions inside it, with the backslash rules of its context applied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import tree_sitter
import tree_sitter_bash
from tree_sitter import Node

from casebook.launch.source import Text


@lru_cache(maxsize=1)
def _language() -> tree_sitter.Language:
    return tree_sitter.Language(tree_sitter_bash.language())


def parse(text: str) -> Node:
    """The syntax tree's root. Offsets are in UTF-16 units: use :func:`start` and :func:`end`."""
    # A carriage return is a letter like any other for bash, and part of the line's end for the grammar.
    text = text.replace("\r", "\ue00d")
    # An astral character is two units; a stand-in of one keeps offsets equal to characters.
    flat = "".join(c if c <= "\uffff" else "\ufffd" for c in text) if _astral(text) else text
    data = flat.encode("utf-16-le", "surrogatepass")
    return tree_sitter.Parser(_language()).parse(data, encoding="utf16le").root_node


def _astral(text: str) -> bool:
    return bool(text) and max(text) > "\uffff"


def start(node: Node) -> int:
    """Offset of a node's first character."""
    return node.start_byte // 2


def end(node: Node) -> int:
    """Offset behind a node's last character."""
    return node.end_byte // 2


_WHOLE = {
    "ansi_c_string": re.compile(r"\$'(?:[^'\\]|\\.)*'", re.DOTALL),
    "raw_string": re.compile(r"'[^']*'"),
}


def errors(root: Node, text: str) -> Iterator[Node]:
    """The places the grammar does not understand, or reads otherwise than bash (some quotes)."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type == "ERROR" or node.is_missing:
            yield node
            continue
        whole = _WHOLE.get(node.type)
        if whole is not None and not whole.fullmatch(text, start(node), end(node)):
            yield node
        stack.extend(reversed(node.children))


@dataclass(frozen=True)
class Unit:
    """One literal character of a word, or one expansion in it."""

    char: str
    at: int
    quoted: bool
    expansion: Node | None = None
    """The expansion's node; ``char`` is then its source text."""
    empty_quotes: bool = False
    """A pair of quotes with nothing between: no character, but it makes a word."""
    tilde: bool = False
    """A ``~`` that stands for a home directory nobody has named."""


def opens(text: Text, node: Node) -> int:
    """Where an expansion begins: the grammar counts blanks before it as its own inside quotes."""
    position, last = start(node), end(node)
    while position < last and text.text[position] not in "$`<>":
        position += 1
    return position if position < last else start(node)


EXPANSIONS = frozenset(
    {
        "simple_expansion",
        "expansion",
        "command_substitution",
        "arithmetic_expansion",
        "process_substitution",
    }
)


def units(text: Text, first: int, last: int, nodes: list[Node]) -> list[Unit]:
    """The units of the word that spans ``first`` to ``last`` and is made of ``nodes``."""
    found: list[Unit] = []
    position = first
    for node in nodes:
        _literal(text, position, start(node), found)
        _node(text, node, found)
        position = end(node)
    _literal(text, position, last, found)
    return found


def _node(text: Text, node: Node, found: list[Unit]) -> None:
    kind = node.type
    if kind in EXPANSIONS:
        _literal(text, start(node), opens(text, node), found)
        _expansion(text, node, quoted=False, found=found)
    elif kind == "raw_string":
        _raw(text, start(node) + 1, end(node) - 1, found)
    elif kind in ("string", "translated_string"):
        _string(text, node, found)
    elif kind == "ansi_c_string":
        _ansi(text, start(node), end(node), found)
    elif kind in ("word", "number", "extglob_pattern", "regex", "test_operator"):
        position = start(node)
        for child in node.children:
            if child.type in EXPANSIONS:
                _literal(text, position, opens(text, child), found)
                _expansion(text, child, quoted=False, found=found)
                position = end(child)
        _literal(text, position, end(node), found)
    elif node.children:
        position = start(node)
        for child in node.children:
            _literal(text, position, start(child), found)
            _node(text, child, found)
            position = end(child)
        _literal(text, position, end(node), found)
    else:
        _literal(text, start(node), end(node), found)


def _expansion(text: Text, node: Node, quoted: bool, found: list[Unit]) -> None:
    first, last = opens(text, node), end(node)
    until = last
    if node.type == "simple_expansion" and text.text[first + 1 : first + 2] in tuple("0123456789"):
        # `$12` is `$1` with a `2` behind it for bash; the grammar makes one name of it.
        until = first + 2
    found.append(Unit(text.text[first:until], text.at[first], quoted, node))
    found.extend(Unit(text.text[i], text.at[i], quoted) for i in range(until, last))


def _literal(text: Text, first: int, last: int, found: list[Unit]) -> None:
    """Unquoted characters: a backslash quotes the next one, and vanishes before a line's end."""
    position = first
    while position < last:
        char = text.text[position]
        if char == "\\" and position + 1 < len(text):
            following = text.text[position + 1]
            if following != "\n":
                found.append(Unit(following, text.at[position + 1], quoted=True))
            position += 2
            continue
        found.append(Unit(char, text.at[position], quoted=False))
        position += 1


def _raw(text: Text, first: int, last: int, found: list[Unit]) -> None:
    if first >= last:
        found.append(Unit("", text.at[first - 1], quoted=True, empty_quotes=True))
    found.extend(Unit(text.text[i], text.at[i], quoted=True) for i in range(first, last))


def _string(text: Text, node: Node, found: list[Unit]) -> None:
    opening = 2 if node.type == "translated_string" else 1
    first, last = start(node) + opening, end(node) - 1
    before = len(found)
    inner = node if node.type == "string" else next(c for c in node.children if c.type == "string")
    position = first
    for child in _expansions_in(inner):
        _in_quotes(text, position, opens(text, child), found)
        _expansion(text, child, quoted=True, found=found)
        position = end(child)
    _in_quotes(text, position, last, found)
    if len(found) == before:
        found.append(Unit("", text.at[first - 1], quoted=True, empty_quotes=True))


def _expansions_in(node: Node) -> Iterator[Node]:
    for child in node.children:
        if child.type in EXPANSIONS:
            yield child
        elif child.type == "string_content":
            yield from _expansions_in(child)


def _in_quotes(text: Text, first: int, last: int, found: list[Unit]) -> None:
    """Between double quotes a backslash quotes only ``$``, `````, ``"``, itself and a line's end."""
    position = first
    while position < last:
        char = text.text[position]
        if char == "\\" and position + 1 < last and text.text[position + 1] in '$`"\\\n':
            if text.text[position + 1] != "\n":
                found.append(Unit(text.text[position + 1], text.at[position + 1], quoted=True))
            position += 2
            continue
        found.append(Unit(char, text.at[position], quoted=True))
        position += 1


_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b"}
_ANSI |= {"f": "\f", "v": "\v", "\\": "\\", "'": "'", '"': '"', "?": "?"}
_HEX = {"x": 2, "u": 4, "U": 8}


def _ansi(text: Text, first: int, last: int, found: list[Unit]) -> None:
    """``$'...'``: C's escapes."""
    raw, position, before = text.text, first + 2, len(found)
    while position < last - 1:
        char, at = raw[position], text.at[position]
        if char != "\\":
            found.append(Unit(char, at, quoted=True))
            position += 1
            continue
        code = raw[position + 1]
        if code in _ANSI:
            found.append(Unit(_ANSI[code], at, quoted=True))
            position += 2
        elif code in _HEX or code in "01234567":
            digits, base = ("0123456789abcdefABCDEF", 16) if code in _HEX else ("01234567", 8)
            begin = position + 2 if code in _HEX else position + 1
            stop = begin
            while stop < last - 1 and stop - begin < _HEX.get(code, 3) and raw[stop] in digits:
                stop += 1
            if stop == begin:
                found.append(Unit("\\", at, quoted=True))
                position += 1
            else:
                found.append(Unit(chr(int(raw[begin:stop], base)), at, quoted=True))
                position = stop
        else:
            found.append(Unit("\\", at, quoted=True))
            position += 1
    if len(found) == before:
        found.append(Unit("", text.at[first], quoted=True, empty_quotes=True))


def named(nodes: Sequence[Node]) -> list[Node]:
    """Those that are more than punctuation."""
    return [n for n in nodes if n.is_named]


def source_of(text: Text, node: Node) -> str:
    """The text of a node."""
    return text.text[start(node) : end(node)]
