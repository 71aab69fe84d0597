"""Which nodes of the grammar make one word of bash.

The grammar passes over an escaped blank (``\\ ``) that stands alone or at a word's edge, and splits a
word where quotes meet. Here neighbours without a gap become one word again, and what was passed over
is given back to the word that it belongs to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tree_sitter import Node

from casebook.launch.bash_tree import end, start
from casebook.launch.source import Text

_GAP = re.compile(r"(\\\n)*")
_ESCAPED = re.compile(r"((?:[ \t\n]|\\\n)*)(\\[ \t])")


@dataclass
class WordGroup:
    """One word's stretch of text and the nodes in it."""

    first: int
    last: int
    nodes: list[Node]


def word_groups(
    text: Text, nodes: Sequence[Node], after: int | None = None, until: int | None = None
) -> list[WordGroup]:
    """Neighbouring nodes as words.

    ``after`` and ``until`` bound the words' stretch where it reaches beyond the first and the last
    node; without them it does not.
    """
    groups: list[WordGroup] = []
    for node in nodes:
        if end(node) <= start(node) or (not node.is_named and node.type in (";", "\n")):
            continue
        _skipped(text, groups, after, start(node))
        if groups and _GAP.fullmatch(text.text[groups[-1].last : start(node)]):
            groups[-1].nodes.append(node)
            groups[-1].last = end(node)
        else:
            groups.append(WordGroup(start(node), end(node), [node]))
    if until is not None:
        _skipped(text, groups, after, until)
    return groups


def line_end(text: Text, position: int) -> int:
    """Where the logical line that holds ``position`` ends: a newline behind a backslash does not end it."""
    while (newline := text.text.find("\n", position)) >= 0:
        before = text.text[:newline]
        if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
            return newline
        position = newline + 1
    return len(text)


def _skipped(text: Text, groups: list[WordGroup], after: int | None, until: int) -> None:
    position = groups[-1].last if groups else after
    if position is None:
        return
    while match := _ESCAPED.match(text.text, position, until):
        joined_on = bool(_GAP.fullmatch(match[1])) and bool(groups)
        first, last = match.start(2), match.end()
        if joined_on:
            groups[-1].last = last
        else:
            groups.append(WordGroup(first, last, []))
        position = last
