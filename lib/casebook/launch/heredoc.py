"""The text of a here-document as the command gets it."""

from __future__ import annotations

from dataclasses import replace

from tree_sitter import Node

from casebook.launch.bash_tree import EXPANSIONS, end, opens, parse, source_of, start
from casebook.launch.expand import Expander
from casebook.launch.field_text import FieldText, joined
from casebook.launch.source import NOWHERE, Text


def heredoc(text: Text, node: Node, expander: Expander) -> FieldText | None:
    """The here-document's text as the command gets it."""
    opening = next((c for c in node.children if c.type == "heredoc_start"), None)
    body = next((c for c in node.children if c.type == "heredoc_body"), None)
    if opening is None:
        return None
    if body is None:
        return FieldText(Text("", []))
    first = text.text.find("\n", end(opening)) + 1
    first = min(first, start(body)) if first else start(body)
    closing = next((c for c in node.children if c.type == "heredoc_end"), None)
    last = start(closing) if closing is not None else end(body)
    last = text.text.rfind("\n", first, last) + 1 or last if closing is not None else last
    raw = any(c in source_of(text, opening) for c in "'\"\\")
    strip = any(c.type == "<<-" for c in node.children)
    if raw:
        found = FieldText(text.cut(first, last), quoted=True)
    else:
        found = _expanded(text, first, last, expander)
    return replace(found, value=_without_tabs(found.value)) if strip else found


def _expanded(text: Text, first: int, last: int, expander: Expander) -> FieldText:
    # The grammar loses expansions behind a backslash in a here-document. Read as one double-quoted
    # word, with the quotes in it made plain letters, it does not.
    raw = text.text[first:last]
    shell = parse(': "' + raw.replace('"', "\ue00e") + '"')
    text = Text(': "' + raw + '"', [NOWHERE] * 3 + list(text.at[first:last]) + [NOWHERE])
    first, last = 3, 3 + len(raw)
    nodes = _expansions(shell)
    pieces: list[FieldText] = []
    position = first
    for node in [*nodes, None]:
        stop = last if node is None else opens(text, node)
        chars, at = [], []
        while position < stop:
            if text.text[position] == "\\" and text.text[position + 1 : position + 2] in tuple(
                "$`\\\n"
            ):
                if text.text[position + 1] != "\n":
                    chars.append(text.text[position + 1])
                    at.append(text.at[position + 1])
                position += 2
                continue
            chars.append(text.text[position])
            at.append(text.at[position])
            position += 1
        pieces.append(FieldText(Text("".join(chars), at)))
        if node is not None:
            found = expander.single(text, opens(text, node), end(node), [node])
            pieces.append(found)
            position = end(node)
    return replace(joined(pieces), quoted=True)


def _expansions(root: Node) -> list[Node]:
    """The outermost expansions below a node, in order."""
    found: list[Node] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in EXPANSIONS:
            found.append(node)
        else:
            stack.extend(reversed(node.children))
    return found


def _without_tabs(value: Text) -> Text:
    keep = [
        i
        for i in range(len(value))
        if value.text[i] != "\t" or value.text[value.text.rfind("\n", 0, i) + 1 : i].strip("\t")
    ]
    return Text("".join(value.text[i] for i in keep), [value.at[i] for i in keep])
