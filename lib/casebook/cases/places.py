"""Where each key of a TOML file stands, so that a complaint can name the line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import tree_sitter_toml
from tree_sitter import Language, Node, Parser

Path = tuple[str | int, ...]


def key_lines(text: str) -> dict[Path, int]:
    """Line (from 1) of each key and table, by path: ``("fault", 0, "kind")``."""
    root = Parser(Language(tree_sitter_toml.language())).parse(text.encode()).root_node
    lines: dict[Path, int] = {(): 1}
    counts: dict[Path, int] = {}
    for node in root.named_children:
        if node.type == "pair":
            lines.update(_pair(node, ()))
            continue
        if node.type not in ("table", "table_array_element"):
            continue
        header: Path = tuple(_names(node.named_children[0]))
        if node.type == "table_array_element":
            position = counts.get(header, 0)
            counts[header] = position + 1
            header = (*header, position)
        lines[header] = node.start_point.row + 1
        for child in node.named_children[1:]:
            if child.type == "pair":
                lines.update(_pair(child, header))
    return lines


def line_of(lines: dict[Path, int], path: Path) -> int:
    """The line of ``path``, or of the nearest table around it that has one."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _pair(node: Node, above: Path) -> Iterator[tuple[Path, int]]:
    key, value = node.named_children[:2]
    path = (*above, *_names(key))
    yield path, key.start_point.row + 1
    if value.type == "inline_table":
        for child in value.named_children:
            if child.type == "pair":
                yield from _pair(child, path)


def _names(node: Node) -> Iterator[str]:
    if node.type == "dotted_key":
        for child in node.named_children:
            yield from _names(child)
        return
    text = (node.text or b"").decode()
    yield json.loads(text) if text.startswith('"') else text.strip("'")
