"""Which arguments did the check read that ended the launch? By the condition in front of its line.

An error's text often names no argument at all: ``assert self.tp_size % 2 == 0, "unsupported"``. The
tests around the line that raised do.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from casebook.resolution.interpret import Reader
from casebook.resolution.model import Failure, Frame


@dataclass(frozen=True)
class Guard:
    """What the check at ``frame`` read: in the test next to its line, and in the tests around that."""

    frame: Frame
    nearest: frozenset[str]
    around: frozenset[str] = frozenset()


def guard_of(failure: Failure | None, reader: Reader, fields: Collection[str]) -> Guard | None:
    """The guard of the line that raised ``failure``; None if it cannot be read or reads no argument."""
    frame = failure.frame if failure is not None else None
    source = reader.source(frame.file) if frame is not None else None
    if frame is None or source is None:
        return None
    function = _function(source.tree, frame.line)
    tests = list(_tests(function, frame.line))
    if not tests:
        return None
    origins = _origins(function, frame.line)
    known = frozenset(fields)
    read = [frozenset(_read(test, origins)) & known for test in tests]
    if not any(read):
        return None
    return Guard(frame, read[-1], frozenset().union(*read[:-1]))


def _function(tree: ast.AST, line: int) -> ast.AST:
    """The innermost function around ``line``, or the module."""
    found = tree
    for node in ast.walk(tree):  # outer before inner
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _spans(node, line):
            found = node
    return found


def _tests(node: ast.AST, line: int) -> Iterator[ast.expr]:
    """The tests that ``line`` stands behind, outermost first; an assert's own comes last."""
    for child in ast.iter_child_nodes(node):
        if not _spans(child, line):
            continue
        behind = isinstance(child, ast.If | ast.While) and not _spans(child.test, line)
        if behind or isinstance(child, ast.Assert):
            yield child.test  # type: ignore[attr-defined]
        yield from _tests(child, line)


def _spans(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", None)
    return first is not None and first <= line <= (getattr(node, "end_lineno", None) or first)


def _origins(function: ast.AST, line: int) -> dict[str, list[ast.expr]]:
    """What each local name was set from before ``line``."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and node.lineno < line:
            for target in node.targets:
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(node.value)
    return found


def _read(
    test: ast.expr, origins: dict[str, list[ast.expr]], seen: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Names of the attributes that an expression reads, through local names."""
    for node in ast.walk(test):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Call):
            yield node.attr
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr":
            yield from (str(a.value) for a in node.args[1:2] if isinstance(a, ast.Constant))
        elif isinstance(node, ast.Name) and node.id not in seen:
            for value in origins.get(node.id, ()):
                yield from _read(value, origins, seen | {node.id})
