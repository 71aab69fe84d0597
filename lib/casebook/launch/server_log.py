"""What a server's own log says of its arguments: the line ``server_args=...`` of old and new releases.

Up to about 0.5.15 it is the text of an object (``ServerArgs(model_path='...', ...)``), later of a
dictionary. Both are read with Python's own parser, never evaluated. A log may be of any length: it is
read line by line and only what is looked for is kept.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casebook.errors import LaunchError
from casebook.launch.secrets import REDACTED, is_secret_name
from casebook.python_ast import parse_expression

MAX_LINE = 2**20
MAX_KEPT = 400
_MARK = b"server_args="
_COMMAND = re.compile(rb"(?:launch_command|sys\.argv|command line)\s*[=:]\s*(\S.*)")
_OBJECT = re.compile(r"<[^<>]*>")
_VERSION = re.compile(rb"sglang(?: version)?[ =:]+v?(\d+\.\d+\.\d+\S*)", re.IGNORECASE)
_KEEP = re.compile(
    rb"avail mem|mem usage|Mamba Cache|KV Cache|max_total_num_tokens|max_mamba_cache_size|Load weight"
    rb"|Memory pool end|Capture .*graph|WARNING|Error|server is fired up|max_running_requests"
)


@dataclass(frozen=True)
class LoggedLine:
    """A line that was kept, with its number."""

    number: int
    text: str


@dataclass(frozen=True)
class ServerLog:
    """The arguments a log names, and the lines of its start."""

    name: str
    arguments: Mapping[str, Any]
    """Field -> value; secrets are marks."""
    line: int
    style: str
    """``object`` (releases up to about 0.5.15) or ``dictionary``."""
    command: str | None
    """The launch command, where a line gives it."""
    version: str | None
    kept: tuple[LoggedLine, ...]
    lines: int


def read_log(path: Path | str) -> ServerLog:
    """Read a server's log. Raises LaunchError if it names no arguments, or ends inside them."""
    path = Path(path)
    found: tuple[int, bytes] | None = None
    command = version = None
    kept: list[LoggedLine] = []
    number = 0
    try:
        for number, line in _lines(path):
            if found is None and _MARK in line:
                found = (number, line)
            if match := _COMMAND.search(line):
                command = match[1].decode("utf-8", "replace").strip()
            if version is None and (match := _VERSION.search(line)):
                version = match[1].decode("utf-8", "replace")
            if len(kept) < MAX_KEPT and _KEEP.search(line) and _MARK not in line:
                kept.append(LoggedLine(number, line[:2000].decode("utf-8", "replace").rstrip()))
    except OSError as error:
        raise LaunchError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not number:
        raise LaunchError(f"{path} is empty.")
    if found is None:
        raise LaunchError(
            f"{path} has no line with `server_args=`; it is not the start of an SGLang server's log."
        )
    style, arguments = parse_arguments(found[1].decode("utf-8", "replace"), path.name, found[0])
    return ServerLog(path.name, arguments, found[0], style, command, version, tuple(kept), number)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines, each cut at MAX_LINE, so that a file without line ends stays in bounds."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE):
            number += 1
            if number == 1 and b"\0" in line[:4096]:
                raise LaunchError(f"{path} is a binary file, not a log.")
            yield number, line
            while not line.endswith(b"\n") and len(line) == MAX_LINE:
                line = file.readline(MAX_LINE)


def parse_arguments(line: str, name: str, number: int) -> tuple[str, dict[str, Any]]:
    """``(style, field -> value)`` of a ``server_args=`` line. Raises LaunchError if it is cut off."""
    text = line[line.index("server_args=") + len("server_args=") :].strip()
    style = "dictionary" if text.startswith("{") else "object"
    tree = _parsed(text) or _parsed(_OBJECT.sub(lambda m: repr(m[0]), text))
    if tree is None:
        text = text[: text.rfind(")" if style == "object" else "}") + 1]
        tree = _parsed(text)
    if tree is None:
        raise LaunchError(
            f"{name} is cut off inside line {number}, where the server names its arguments."
        )
    if isinstance(tree, ast.Call):
        pairs: dict[str, ast.expr] = {k.arg: k.value for k in tree.keywords if k.arg}
    elif isinstance(tree, ast.Dict):
        pairs = {
            str(k.value): v
            for k, v in zip(tree.keys, tree.values, strict=True)
            if isinstance(k, ast.Constant)
        }
    else:
        raise LaunchError(f"Line {number} of {name} does not name a server's arguments.")
    return style, {
        str(field): REDACTED if is_secret_name(str(field)) and _value(node) else _value(node)
        for field, node in pairs.items()
    }


def _parsed(text: str) -> ast.expr | None:
    try:
        return parse_expression(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return ast.unparse(node)
