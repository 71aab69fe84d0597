"""Look things up in a capsule's source: text, writes to a field, the ``raise`` behind a message.

This is what the engineer did by hand that day: stop turning knobs, read the source, search once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from casebook.capsule import Capsule
from casebook.resolution import sources
from casebook.resolution.model import Frame, squeezed

SERVER_ARGS = "srt/server_args.py"
# Where a release keeps the code that decides arguments; later ones moved it out of server_args.py.
DECIDING = (SERVER_ARGS, "srt/arg_groups")
MIN_QUOTED = 20


@dataclass(frozen=True)
class Raise:
    """A ``raise`` or ``assert`` whose message can be the one that was seen."""

    frame: Frame
    condition: str
    """The nearest ``if`` around it, as written; empty if there is none."""


def files(capsule: Capsule, within: tuple[str, ...] = DECIDING) -> Iterator[Path]:
    """The Python files of ``within`` (files or folders below the package) that the release has."""
    for name in within:
        path = capsule.sglang / name
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from sorted(path.rglob("*.py"))


def grep(capsule: Capsule, pattern: str, within: tuple[str, ...] = (SERVER_ARGS,)) -> pd.DataFrame:
    """Lines that match a regular expression: file, line, function, text."""
    compiled = re.compile(pattern)
    rows = []
    for path in files(capsule, within):
        source = sources.read(path)
        name = path.relative_to(capsule.sglang).as_posix()
        rows += [
            {
                "file": name,
                "line": number,
                "function": source.function_at(number),
                "text": text.strip(),
            }
            for number, text in enumerate(source.lines, 1)
            if compiled.search(text)
        ]
    return pd.DataFrame(rows, columns=["file", "line", "function", "text"])


def raises(capsule: Capsule, message: str, within: tuple[str, ...] = DECIDING) -> list[Raise]:
    """Each ``raise`` or ``assert`` whose text, with its placeholders filled in, begins ``message``.

    White space is not compared: SGLang joins sentences without a blank, and people quote them with one.
    """
    wanted = squeezed(message)
    found = []
    for path in files(capsule, within):
        source = sources.read(path)
        name = path.relative_to(capsule.sglang).as_posix()
        for node, condition in _with_condition(source.tree, ""):
            template = _template(node)
            if template is not None and _matches(template, wanted):
                frame = Frame(
                    name,
                    node.lineno,
                    source.function_at(node.lineno).rpartition(".")[2],
                    source.line(node.lineno),
                )
                found.append(Raise(frame, condition))
    return found


def writes(capsule: Capsule, field: str, within: tuple[str, ...] = DECIDING) -> pd.DataFrame:
    """Every assignment to ``<something>.field`` and every declaration of it: file, line, function, text."""
    rows = []
    for path in files(capsule, within):
        source = sources.read(path)
        name = path.relative_to(capsule.sglang).as_posix()
        lines = sorted(set(_write_lines(source.tree, field)))
        rows += [
            {
                "file": name,
                "line": line,
                "function": source.function_at(line),
                "text": source.line(line),
            }
            for line in lines
        ]
    return pd.DataFrame(rows, columns=["file", "line", "function", "text"])


def excerpt(capsule: Capsule, frame: Frame, before: int = 3, after: int = 3) -> str:
    """Source lines around a frame, numbered, with a mark at its own."""
    source = sources.read(capsule.sglang / frame.file)
    first, last = max(1, frame.line - before), min(len(source.lines), frame.line + after)
    return "\n".join(
        f"{'→' if number == frame.line else ' '} {number:5d}  {source.lines[number - 1]}"
        for number in range(first, last + 1)
    )


def _write_lines(tree: ast.AST, field: str) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(t, ast.Attribute) and t.attr == field for t in targets):
                yield node.lineno
        elif isinstance(node, ast.keyword) and node.arg == field:
            yield node.value.lineno
        elif isinstance(node, ast.Dict):
            for key in node.keys:
                if isinstance(key, ast.Constant) and key.value == field:
                    yield key.lineno


def _with_condition(node: ast.AST, condition: str) -> Iterator[tuple[ast.stmt, str]]:
    """Each raise and assert, with the test of the nearest ``if`` around it."""
    for name, block in ast.iter_fields(node):
        for child in block if isinstance(block, list) else [block]:
            if not isinstance(child, ast.AST):
                continue
            inner = condition
            if isinstance(node, ast.If) and name in ("body", "orelse"):
                test = ast.unparse(node.test)
                inner = test if name == "body" else f"not ({test})"
            if isinstance(child, (ast.Raise, ast.Assert)):
                yield child, inner
            yield from _with_condition(child, inner)


def _template(node: ast.stmt) -> list[str | None] | None:
    """A message as its literal parts, None where a value is put in; None if there is no text."""
    if isinstance(node, ast.Assert):
        expression = node.msg
    elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
        expression = node.exc.args[0]
    else:
        return None
    parts = list(_parts(expression))
    return parts if any(parts) else None


def _parts(node: ast.expr | None) -> Iterator[str | None]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _parts(value)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _parts(node.left)
        yield from _parts(node.right)
    elif node is not None:
        yield None


def _matches(template: list[str | None], wanted: str) -> bool:
    """Whether ``wanted`` (squeezed) is the template filled in, or its beginning quoted in part.

    A part quoted must run over literal text of at least ``MIN_QUOTED`` characters, or every message
    that begins with a placeholder would match.
    """
    position = literal = 0
    for number, part in enumerate(template):
        if part is None:
            continue
        text = squeezed(part)
        after_value = number > 0 and template[number - 1] is None
        at = wanted.find(text, position) if after_value else position
        if at >= 0 and wanted.startswith(text, at):
            position, literal = at + len(text), literal + len(text)
            continue
        rest = _overlap(wanted, text, position) if after_value else len(wanted) - position
        quoted = wanted[len(wanted) - rest :] if rest > 0 else ""
        return bool(quoted) and text.startswith(quoted) and literal + len(quoted) >= MIN_QUOTED
    return literal >= min(MIN_QUOTED, len(wanted)) and (
        position == len(wanted) or template[-1] is None
    )


def _overlap(wanted: str, text: str, position: int) -> int:
    """Length of the longest end of ``wanted``, after ``position``, that begins ``text``."""
    longest = min(len(text), len(wanted) - position)
    return next((n for n in range(longest, 0, -1) if text.startswith(wanted[-n:])), 0)
