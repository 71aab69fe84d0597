"""Tests (``[ ... ]``, ``[[ ... ]]``) that can be decided from words alone."""

from __future__ import annotations

import re

from tree_sitter import Node

from casebook.launch.bash_tree import end, start
from casebook.launch.expand import Expander
from casebook.launch.field_text import FieldText
from casebook.launch.source import Text

_NUMBERS = {"-eq": "==", "-ne": "!=", "-lt": "<", "-gt": ">", "-le": "<=", "-ge": ">="}


def words_of(text: Text, node: Node, expander: Expander) -> list[FieldText] | None:
    """The words between the brackets, expanded; None if one of them is not certain."""
    source = text.text[start(node) : end(node)]
    double = source.startswith("[[")
    found: list[FieldText] = []
    for leaf in _leaves(node):
        raw = text.text[start(leaf) : end(leaf)]
        if raw in ("[", "]", "[[", "]]", "test"):
            continue
        if double:
            fields = [expander.single(text, start(leaf), end(leaf), [leaf])]
        else:
            fields = expander.word(text, start(leaf), end(leaf), [leaf])
        if any(not f.exact for f in fields):
            return None
        found.extend(fields)
    return found


def _leaves(node: Node) -> list[Node]:
    if node.type in (
        "unary_expression",
        "binary_expression",
        "test_command",
        "negation_expression",
    ):
        return [leaf for child in node.children for leaf in _leaves(child)]
    if node.type == "command":
        return list(node.children)
    return [node]


def holds(words: list[FieldText], double: bool) -> bool | None:
    """Whether the test is true; None where it asks the world or is not understood."""
    texts = [w.text for w in words]
    if texts[:1] == ["!"]:
        inner = holds(words[1:], double)
        return None if inner is None else not inner
    if len(texts) == 1:
        return bool(texts[0])
    if len(texts) == 2 and texts[0] in ("-z", "-n"):
        return bool(texts[1]) == (texts[0] == "-n")
    if len(texts) != 3:
        return None
    left, operator, right = texts
    if operator in ("=", "==", "!="):
        if double and not words[2].quoted and re.search(r"[*?\[\\]", right):
            return None
        return (left == right) == (operator != "!=")
    if operator in _NUMBERS and all(re.fullmatch(r"-?\d+", t) for t in (left, right)):
        one, other = int(left), int(right)
        return {
            "-eq": one == other,
            "-ne": one != other,
            "-lt": one < other,
            "-gt": one > other,
            "-le": one <= other,
            "-ge": one >= other,
        }[operator]
    return None
