"""SGLang's source files as text and syntax: lines, functions, and which statements share a branch.

Reading a message as the reason for a change needs to know whether both stand in the same branch of
the same function; line distance alone would join neighbours that exclude each other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from casebook.errors import DataError
from casebook.python_ast import parse


@dataclass(frozen=True)
class Source:
    """One parsed file. ``branches[line]`` is the chain of suites around a line, outermost first."""

    path: Path
    lines: tuple[str, ...]
    tree: ast.Module
    functions: tuple[tuple[int, int, str], ...]
    """``(first line, last line, qualified name)``, outer before inner."""
    branches: dict[int, tuple[int, ...]]

    def line(self, number: int) -> str:
        """The text of a line, stripped; empty past the end."""
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else ""

    def function_at(self, number: int) -> str:
        """Qualified name of the innermost function or class around a line; ``<module>`` outside."""
        name = "<module>"
        for first, last, qualified in self.functions:
            if first <= number <= last:
                name = qualified
        return name

    def declared_at(self, line: int, field: str, value: Any = None) -> int:
        """The line that decided ``field`` in what a ``return`` at ``line`` gives, else ``line``.

        It stands in the returned dictionary, or where the returned variable got it; of several such
        lines the one that sets ``value``.
        """
        for node in self.returns.get(line, ()):
            for key in node.keys:
                if isinstance(key, ast.Constant) and key.value == field:
                    return key.lineno
        entries = list(self._entries(line, field))
        if len(entries) > 1:
            entries = [e for e in entries if isinstance(e[1], ast.Constant) and e[1].value == value]
        return entries[0][0] if len(entries) == 1 else line

    def _entries(self, line: int, field: str) -> Iterator[tuple[int, ast.expr]]:
        """Where the variable that ``line`` returns got ``field``: line and value of each place."""
        name = re.fullmatch(r"return (\w+)", self.line(line))
        if name is None:
            return
        first = next((f for f, last, _ in reversed(self.functions) if f <= line <= last), 1)
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not first <= node.lineno < line:
                continue
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Subscript):
                key = target.slice
                named = isinstance(target.value, ast.Name) and target.value.id == name[1]
                if named and isinstance(key, ast.Constant) and key.value == field and node.value:
                    yield node.lineno, node.value
            elif (
                isinstance(target, ast.Name)
                and target.id == name[1]
                and isinstance(node.value, ast.Dict)
            ):
                for entry, given in zip(node.value.keys, node.value.values, strict=True):
                    if isinstance(entry, ast.Constant) and entry.value == field:
                        yield entry.lineno, given

    @cached_property
    def returns(self) -> dict[int, list[ast.Dict]]:
        """First line of each ``return {...}`` -> its dictionaries."""
        found: dict[int, list[ast.Dict]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
                found.setdefault(node.lineno, []).append(node.value)
        return found

    def shared_branch(self, one: int, other: int) -> int:
        """How deep a suite two lines share, if one line's suites enclose the other; else 0.

        1 is the function's own body, which encloses everything in it.
        """
        a, b = self.branches.get(one, ()), self.branches.get(other, ())
        depth = min(len(a), len(b))
        return depth if a[:depth] == b[:depth] else 0


@lru_cache(maxsize=512)
def read(path: Path) -> Source:
    """Parse ``path``; cached, as a capsule's files do not change. Raises DataError if it cannot."""
    try:
        text = path.read_text("utf-8")
        tree = parse(text)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise DataError(
            f"The source file {path.name} of SGLang cannot be read: {error}."
        ) from error
    functions: list[tuple[int, int, str]] = []
    branches: dict[int, tuple[int, ...]] = {}
    _index(tree, (), (), functions, branches)
    return Source(path, tuple(text.splitlines()), tree, tuple(functions), branches)


def _index(
    node: ast.AST,
    names: tuple[str, ...],
    chain: tuple[int, ...],
    functions: list[tuple[int, int, str]],
    branches: dict[int, tuple[int, ...]],
) -> None:
    for _, block in ast.iter_fields(node):
        if not (isinstance(block, list) and block and isinstance(block[0], ast.stmt)):
            if isinstance(block, list):  # except handlers, match cases
                for child in block:
                    if isinstance(child, (ast.excepthandler, ast.match_case)):
                        _index(child, names, chain, functions, branches)
            continue
        inner = (*chain, id(block))
        for statement in block:
            end = statement.end_lineno or statement.lineno
            here = inner
            deeper = names
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                deeper = (*names, statement.name)
                functions.append((statement.lineno, end, ".".join(deeper)))
                here = ()  # a function's own body starts a new chain
            for line in range(statement.lineno, end + 1):
                branches[line] = inner
            _index(statement, deeper, here, functions, branches)
