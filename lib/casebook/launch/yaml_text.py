"""YAML as ruamel.yaml composes it, with the place of every character of every scalar."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from casebook.errors import LaunchError
from casebook.launch.source import Source, Text

MAX_NODES = 400_000


@dataclass(frozen=True)
class Item:
    """One YAML value."""

    kind: str
    """``scalar``, ``list`` or ``map``."""
    start: int
    end: int
    text: Text
    """A scalar's characters."""
    style: str = ""
    """``|``, ``>``, ``'``, ``"`` or empty."""
    tag: str = ""
    items: tuple[Item, ...] = ()
    pairs: tuple[tuple[Item, Item], ...] = field(default=())

    def get(self, key: str) -> Item | None:
        """The last value of a key of a map."""
        return next((v for k, v in reversed(self.pairs) if k.text.text == key), None)

    @property
    def value(self) -> object:
        """A scalar as YAML means it: None, a truth value, or its text."""
        kind = self.tag.rpartition(":")[2]
        if kind == "null":
            return None
        if kind == "bool":
            return self.text.text.lower() in ("true", "yes", "on", "y")
        return self.text.text


def documents(source: Source) -> list[Item]:
    """All documents of a YAML file. Raises LaunchError in one sentence."""
    yaml = YAML(typ="safe", pure=True)
    try:
        nodes = list(yaml.compose_all(source.text))
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be parsed"
        raise LaunchError(f"{source.name} is not YAML: {problem}{where}.") from error
    except (ValueError, RecursionError, AttributeError) as error:
        raise LaunchError(f"{source.name} is not YAML: {error}.") from error
    return [_item(node, source, [0], 0) for node in nodes if node is not None]


def _item(node: Node, source: Source, count: list[int], depth: int) -> Item:
    count[0] += 1
    if count[0] > MAX_NODES or depth > 60:  # aliases can multiply without end
        raise LaunchError(f"{source.name} holds too many values to be a manifest.")
    start, end = node.start_mark.index, node.end_mark.index
    if isinstance(node, ScalarNode):
        return Item(
            "scalar",
            start,
            end,
            _aligned(str(node.value), source.text, start, end),
            node.style or "",
            str(node.tag),
        )
    if isinstance(node, SequenceNode):
        items = tuple(_item(child, source, count, depth + 1) for child in node.value)
        return Item("list", start, end, Text("", []), items=items)
    if isinstance(node, MappingNode):
        pairs = tuple(
            (_item(k, source, count, depth + 1), _item(v, source, count, depth + 1))
            for k, v in node.value
        )
        return Item("map", start, end, Text("", []), pairs=pairs)
    raise LaunchError(f"{source.name} holds a YAML value of an unknown kind.")


def _aligned(value: str, raw: str, start: int, end: int) -> Text:
    """Each character of a scalar at its place: the next equal one in the source."""
    at: list[int] = []
    position = start
    if raw[start : start + 1] in "|>'\"" and value:
        position = start + 1
        if raw[start] in "|>":
            position = raw.find("\n", start, end) + 1 or start
    for char in value:
        if char in " \n":
            found = position if raw[position : position + 1] in (" ", "\n") else -1
        else:
            found = raw.find(char, position, end)
        if found >= 0:
            at.append(found)
            position = found + 1
        else:
            at.append(min(position, max(end - 1, start)))
    return Text(value, at)


def maps(item: Item) -> Iterator[Item]:
    """Every map in a document, outermost first."""
    stack = [item]
    while stack:
        one = stack.pop()
        if one.kind == "map":
            yield one
            stack.extend(v for _, v in reversed(one.pairs))
        elif one.kind == "list":
            stack.extend(reversed(one.items))
