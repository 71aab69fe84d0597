"""Read case files. A file that is not a case is reported by file and line, with the nearest right key."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from casebook.cases.model import Case, CaseLaunch, Statement
from casebook.cases.places import key_lines, line_of
from casebook.catalog.gpus import gpu as find_gpu
from casebook.catalog.models import model as find_model
from casebook.errors import CasebookError, CaseError, UnknownCaseError, nearest
from casebook.paths import data_dir

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
_KINDS: dict[str, type[BaseModel]] = {
    str(get_args(one.model_fields["kind"].annotation)[0]): one
    for one in get_args(get_args(Statement)[0])
}


def load_cases(folder: Path | None = None) -> dict[str, Case]:
    """Every case of ``data/cases`` (or ``folder``) by name, in order of name."""
    folder = folder or data_dir() / "cases"
    cases = [read_case(path) for path in sorted(folder.glob("*.toml"))]
    if not cases:
        raise CaseError(f"{folder} holds no case file.")
    return {case.name: case for case in cases}


def named(names: Sequence[str], folder: Path | None = None) -> list[Case]:
    """The cases called ``names`` (all, if there are none); a name may also be a file's path."""
    if names and all(_is_file(name) for name in names):
        return [read_case(Path(name)) for name in names]
    known = load_cases(folder)
    for name in names:
        if name not in known and not _is_file(name):
            raise UnknownCaseError(
                "case", name, known, "`casebook case list` lists them; a path of a file works too."
            )
    chosen: Iterable[str] = names or known
    return [known[name] if name in known else read_case(Path(name)) for name in chosen]


def _is_file(name: str) -> bool:
    return name.endswith(".toml") and Path(name).is_file()


def read_case(path: Path) -> Case:
    """The case in one file. Raises CaseError, naming each faulty line."""
    if not _NAME.fullmatch(path.stem):
        raise CaseError(f"{path} is no case's name; use small letters, digits, `-` and `.`.")
    try:
        text = path.read_text("utf-8")
        table = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        where = re.search(r"\(at line (\d+), column \d+\)", str(error))
        raise CaseError(
            f"{path}:{where[1] if where else 1}: cannot be read as TOML: {error}."
        ) from error
    if "name" in table:
        raise CaseError(
            f"{path}:{line_of(key_lines(text), ('name',))}: a case's name is its file's."
        )
    try:
        case = Case.model_validate({**table, "name": path.stem})
    except ValidationError as error:
        lines = key_lines(text)
        said = [_complaint(path, lines, item) for item in error.errors()]
        raise CaseError("; ".join(said) + ".") from error
    _check_names(case, path, text)
    return case


def _check_names(case: Case, path: Path, text: str) -> None:
    for key, value, find in (("gpu", case.gpu, find_gpu), ("model", case.model, find_model)):
        if value is None:
            continue
        try:
            find(value)
        except CasebookError as error:
            raise CaseError(f"{path}:{line_of(key_lines(text), (key,))}: {error}") from error


def _complaint(path: Path, lines: dict[tuple[str | int, ...], int], item: Any) -> str:
    loc = tuple(item["loc"])
    # pydantic names the kind of a statement in between, which is no key of the file.
    place = tuple(p for n, p in enumerate(loc) if not (n == 2 and loc[0] == "fault"))
    where = f"{path}:{line_of(lines, place)}"
    key = ".".join(str(p) for p in place) or "the case"
    if item["type"] == "extra_forbidden":
        near = nearest(str(place[-1]), _keys_around(loc), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{where}: there is no key {key}{hint}".rstrip("?") + ("?" if near else "")
    if item["type"] == "missing":
        return f"{where}: {key} is missing"
    said = str(item["msg"]).removeprefix("Value error, ")
    return f"{where}: {key}: {said[:1].lower()}{said[1:]}"


def _keys_around(loc: tuple[str | int, ...]) -> list[str]:
    around: type[BaseModel] = Case
    if loc[0] == "launch" and len(loc) > 1:
        around = CaseLaunch
    elif loc[0] == "fault" and len(loc) > 2:
        around = _KINDS[str(loc[2])]
    fields = {k: v for k, v in around.model_fields.items() if k != "name"}
    return [field.alias or name for name, field in fields.items()]
