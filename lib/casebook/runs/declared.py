"""Which parameters a notebook takes: names, types and defaults of its cell tagged ``parameters``.

The cell is parsed, never run. Papermill has an inspection of its own, by regular expressions, which
drops ``x: int | None`` and misreads a ``#`` inside a string, and it only logs a misspelt name; a
batch of hours must not start with a parameter that the notebook ignores.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casebook.errors import RunError, nearest
from casebook.python_ast import parse, parse_expression

_PLAIN = {
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "bool": (bool,),
    "list": (list, tuple),
    "tuple": (list, tuple),
    "dict": (dict,),
    "None": (type(None),),
}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True)
class Parameter:
    """One line ``name: type = default`` of the parameters cell; ``type`` is source text."""

    name: str
    type: str
    default: str | None
    """Source text; None for a line ``name: type``, whose value each run must give."""

    def accepts(self, value: Any) -> bool:
        """Whether ``value`` is of the declared type; a type we cannot read accepts plain data."""
        return _accepts(parse_expression(self.type), value)

    def from_text(self, text: str) -> Any:
        """The value that ``text``, typed in a shell, stands for under the declared type.

        The declared type decides, not the look of the text: ``123`` stays text for a ``str``.
        """
        if self.accepts(text):
            return text
        if text.lower() in _TRUTH and self.accepts(True) and not self.accepts(0):
            return _TRUTH[text.lower()]
        for read in (int, float, json.loads):
            try:
                value = read(text)
            except ValueError:
                continue
            if self.accepts(value):
                return value
        if text in ("None", "null") and self.accepts(None):
            return None
        return text  # the type check that follows says what is wrong


def read_notebook(path: Path) -> dict[str, Any]:
    """The notebook's JSON; a RunError if there is none at ``path``."""
    try:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(notebook["cells"], list) or notebook["nbformat"] < 4:
            raise KeyError
    except OSError as error:
        raise RunError(
            f"There is no readable notebook {str(path)!r} ({error.strerror})."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{str(path)!r} is not a notebook of format 4; open and save it in JupyterLab."
        ) from error
    return notebook


def source(cell: dict[str, Any]) -> str:
    """A cell's text; on disk it is one string or a list of lines."""
    text = cell.get("source", "")
    return text if isinstance(text, str) else "".join(text)


def title(notebook: dict[str, Any], fallback: str) -> str:
    """The first level-one heading of the notebook's prose, or ``fallback``."""
    for cell in notebook["cells"]:
        if cell.get("cell_type") == "markdown":
            for line in source(cell).splitlines():
                if line.startswith("# "):
                    return line[2:].strip()
    return fallback


def declared(notebook: dict[str, Any], where: Path) -> dict[str, Parameter]:
    """The parameters by name; empty if no cell is tagged ``parameters``."""
    for cell in notebook["cells"]:
        if "parameters" in cell.get("metadata", {}).get("tags", []):
            try:
                body = parse(source(cell)).body
            except SyntaxError as error:
                raise RunError(
                    f"Line {error.lineno} of the parameters cell of {where.name} is not plain "
                    f"Python ({error.msg}); write one 'name: type = value' a line."
                ) from error
            found = [p for node in body for p in _assigned(node)]
            return {p.name: p for p in found}
    return {}


def check(parameters: dict[str, Any], known: dict[str, Parameter], where: Path) -> None:
    """Refuse an undeclared name, a value of another type than declared, and a missing value."""
    for name, value in parameters.items():
        if name not in known:
            near = nearest(name, known)
            guess = f" Did you mean {' or '.join(near)}?" if near else ""
            takes = ", ".join(known) or "none: it has no cell tagged 'parameters'"
            raise RunError(f"{where.name} has no parameter {name!r}; it takes {takes}.{guess}")
        if not _is_plain(value):
            raise RunError(
                f"Parameter {name!r} of {where.name} cannot take a {type(value).__name__}; give "
                "text, numbers, true/false, lists or tables of these."
            )
        if not known[name].accepts(value):
            raise RunError(
                f"Parameter {name!r} of {where.name} is declared {known[name].type} and cannot be "
                f"{value!r}, which is {type(value).__name__}."
            )
    for name, parameter in known.items():
        if parameter.default is None and name not in parameters:
            raise RunError(
                f"{where.name} needs a value for its parameter {name!r} ({parameter.type}); give "
                f"one, as in -p {name}=VALUE."
            )


def _assigned(node: ast.stmt) -> list[Parameter]:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        annotation = node.annotation
        kind = annotation.value if isinstance(annotation, ast.Constant) else None
        return [
            Parameter(
                node.target.id,
                kind if isinstance(kind, str) else ast.unparse(annotation),
                ast.unparse(node.value) if node.value else None,
            )
        ]
    if isinstance(node, ast.Assign):
        names = [t.id for t in node.targets if isinstance(t, ast.Name)]
        return [Parameter(n, _type_of(node.value), ast.unparse(node.value)) for n in names]
    return []


def _type_of(default: ast.expr) -> str:
    """The type an unannotated parameter has by its default; ``object`` where that tells nothing."""
    try:
        value = ast.literal_eval(default)
    except ValueError:
        return "object"
    return "object" if value is None else type(value).__name__


def _accepts(kind: ast.expr, value: Any) -> bool:
    match kind:
        case ast.Constant(value=None):
            return value is None
        case ast.Name(id=name) if name in _PLAIN:
            # bool is an int to Python, but 'tp: int' given 'true' is a slip.
            right = not isinstance(value, bool) or name == "bool"
            return right and isinstance(value, _PLAIN[name])
        case ast.BinOp(left=left, op=ast.BitOr(), right=right_kind):
            return _accepts(left, value) or _accepts(right_kind, value)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return value is None or _accepts(inner, value)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            choices = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return any(
                type(value) is type(c.value) and value == c.value
                for c in choices
                if isinstance(c, ast.Constant)
            )
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return isinstance(value, list | tuple) and all(_accepts(inner, v) for v in value)
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, inner])):
            return isinstance(value, dict) and all(
                _accepts(key, k) and _accepts(inner, v) for k, v in value.items()
            )
        case ast.Subscript(value=ast.Name(id=name)):
            return _accepts(ast.Name(id=name), value)
    return True


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    return value is None or isinstance(value, str | int | float | bool)
