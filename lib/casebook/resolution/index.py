"""The static index of a release: who reads and who writes a server argument, anywhere in SGLang.

The trail shows what happened to one launch up to the engine's start. Later code may write again: the
model runner while it sizes its pools, the scheduler when it caps requests. Those writes are found here
by reading, not by running, and are shown as *may change later*.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import pandas as pd

from casebook.capsule import Capsule
from casebook.resolution import sources
from casebook.resolution.search import DECIDING

# What server arguments are called where they are used; anything else with an attribute of the same
# name (`self.page_size` of a cache) is another thing.
_OWNERS = frozenset(
    {
        *(
            "server_args",
            "args",
            "cfg",
            "view",
            "server_args_dict",
            "draft_server_args",
            "resolved",
        ),
        *("global_server_args", "get_global_server_args", "target_server_args", "base_args"),
    }
)
# Calls that write through keywords: `declare_resolution(args, source, page_size=1)`.
_WRITERS = frozenset({"declare_resolution", "override", "replace"})
_PROVIDER_FOLDERS = ("srt/arg_groups",)
# Components that keep an argument under its own name and may then decide otherwise, as the model
# runner does when it caps `max_running_requests` by what the pools hold.
_COMPONENTS = (
    "srt/model_executor",
    "srt/managers/scheduler",
    "srt/mem_cache",
    "srt/managers/tp_worker",
)
# In 0.5.20 and later the resolved values are read as `get_schedule().max_running_requests`.
_CONTEXT = "srt/runtime_context.py"


@dataclass(frozen=True)
class Use:
    """One read or write of an argument: place, function, the tests around it, the text of the line."""

    field: str
    operation: str
    """``read`` or ``write``."""
    style: str
    """``assign`` (an attribute is set), ``declare`` (a declaration), ``own copy`` (a component decides a
    value of its own under the argument's name), or ``attribute`` (a read)."""
    file: str
    line: int
    function: str
    condition: str
    """The tests of the ``if`` statements around it, outermost first, joined by ``and``."""
    text: str

    @property
    def late(self) -> bool:
        """Whether it stands outside the code that resolves arguments before the engine starts."""
        return not self.file.startswith(DECIDING)


def uses(capsule: Capsule, field: str) -> list[Use]:
    """Every read and write of ``field`` in the release, in order of file and line."""
    return [use for use in _scan(capsule.sglang, field) if use.field == field]


def who_writes(capsule: Capsule, field: str) -> pd.DataFrame:
    """One row per write of ``field``: operation, style, place, condition, text."""
    return _frame([use for use in uses(capsule, field) if use.operation == "write"])


def who_reads(capsule: Capsule, field: str) -> pd.DataFrame:
    """One row per read of ``field``."""
    return _frame([use for use in uses(capsule, field) if use.operation == "read"])


def later_writes(capsule: Capsule, field: str) -> list[Use]:
    """Writes of ``field`` that come after resolution: in the engine, the model runner, the scheduler."""
    return [use for use in uses(capsule, field) if use.operation == "write" and use.late]


def _frame(found: list[Use]) -> pd.DataFrame:
    columns = ["file", "line", "function", "style", "late", "condition", "text"]
    rows = [{**asdict(use), "late": use.late} for use in found]
    return pd.DataFrame(rows, columns=columns).rename(columns={"late": "after resolution"})


@lru_cache(maxsize=256)
def _scan(package: Path, field: str) -> tuple[Use, ...]:
    word = re.compile(rf"\b{re.escape(field)}\b")
    found: list[Use] = []
    getters = _context_getters(package)
    for path in _files(package):
        text = _text(path)
        if word.search(text) is None:
            continue
        source = sources.read(path)
        file = path.relative_to(package).as_posix()
        found += sorted(_uses_in(source, file, field, getters), key=lambda use: use.line)
    return tuple(found)


@lru_cache(maxsize=8)
def _files(package: Path) -> tuple[Path, ...]:
    """The server's own modules: no tests, no model definitions' kernels, no benchmarks."""
    srt = sorted((package / "srt").rglob("*.py"))
    return tuple(p for p in srt if "test" not in p.relative_to(package).parts)


@lru_cache(maxsize=8192)
def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


@lru_cache(maxsize=8)
def _context_getters(package: Path) -> frozenset[str]:
    path = package / _CONTEXT
    if not path.is_file():
        return frozenset()
    functions = (n for n in sources.read(path).tree.body if isinstance(n, ast.FunctionDef))
    return frozenset(f.name for f in functions if f.name.startswith("get_") and not f.args.args)


def _uses_in(
    source: sources.Source, file: str, field: str, getters: frozenset[str]
) -> Iterator[Use]:
    for node, conditions in _walk(source.tree, ()):
        kind = _kind(node, field, file, getters)
        if kind is None:
            continue
        operation, style, line = kind
        yield Use(
            field=field,
            operation=operation,
            style=style,
            file=file,
            line=line,
            function=source.function_at(line),
            condition=" and ".join(conditions),
            text=source.line(line),
        )


def _kind(
    node: ast.AST, field: str, file: str, getters: frozenset[str]
) -> tuple[str, str, int] | None:
    """Operation, style and line, if ``node`` is a use of the argument."""
    if isinstance(node, ast.Attribute) and node.attr == field:
        if not _is_arguments(node.value, file.startswith(DECIDING), getters):
            return None
        if isinstance(node.ctx, ast.Store):
            return "write", "assign", node.lineno
        return "read", "attribute", node.lineno
    if isinstance(node, ast.Assign) and file.startswith(_COMPONENTS):
        target = node.targets[0]
        # `self.x = config.x` only hands the value on.
        if (
            isinstance(target, ast.Attribute)
            and field == target.attr != _name(node.value)
            and not _is_arguments(target.value, False, getters)  # seen as an attribute, above
        ):
            return "write", "own copy", node.lineno
    if isinstance(node, ast.Call) and _name(node.func) in _WRITERS:
        for keyword in node.keywords:
            if keyword.arg == field:
                return "write", "declare", keyword.value.lineno
    if isinstance(node, ast.Dict) and file.startswith(_PROVIDER_FOLDERS):
        for key in node.keys:
            if isinstance(key, ast.Constant) and key.value == field:
                return "write", "declare", key.lineno
    if (
        isinstance(node, ast.Assign)
        and file.startswith(_PROVIDER_FOLDERS)
        and isinstance(node.targets[0], ast.Subscript)
        and isinstance(node.targets[0].slice, ast.Constant)
        and node.targets[0].slice.value == field
    ):
        return "write", "declare", node.lineno
    if isinstance(node, ast.Call) and _name(node.func) == "setattr" and len(node.args) == 3:
        name = node.args[1]
        if isinstance(name, ast.Constant) and name.value == field:
            return "write", "assign", node.lineno
    return None


def _is_arguments(node: ast.expr, resolving: bool, getters: frozenset[str]) -> bool:
    name = _name(node)
    if name in _OWNERS or (isinstance(node, ast.Call) and name in getters):
        return True
    # Inside the record's own methods the record is `self`.
    return resolving and isinstance(node, ast.Name) and node.id == "self"


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return _name(node.func)
    return ""


def _walk(node: ast.AST, conditions: tuple[str, ...]) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    """Every node with the tests of the ``if`` statements that lead to it; a function starts anew."""
    yield node, conditions
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        conditions = ()
    for name, block in ast.iter_fields(node):
        inner = conditions
        if isinstance(node, ast.If) and name in ("body", "orelse"):
            test = ast.unparse(node.test)
            inner = (*conditions, test if name == "body" else f"not ({test})")
        for child in block if isinstance(block, list) else [block]:
            if isinstance(child, ast.AST):
                yield from _walk(child, inner)
