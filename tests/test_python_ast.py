"""Parsing from several threads: what once ended in a SystemError of the interpreter's."""

from __future__ import annotations

import ast
import gc
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import casebook
from casebook import python_ast

DEEP = "\n".join(
    "x = " + "(" * 40 + f"{n}" + ")" * 40 + " + f(a, [b, {'c': d}])" for n in range(300)
)


class Litter:
    """Garbage whose collection runs Python, and so lets another thread in while a tree is built."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        for _ in range(200):
            pass


def work(_: int) -> str:
    for _ in range(50):
        Litter()
    return ast.dump(python_ast.parse(DEEP))


def test_threads_do_not_disturb_each_other() -> None:
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert len(set(threads.map(work, range(16)))) == 1
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)


def test_expressions() -> None:
    assert isinstance(python_ast.parse_expression("a | b"), ast.BinOp)
    with pytest.raises(SyntaxError):
        python_ast.parse("def")


def test_nothing_parses_another_way() -> None:
    folder = next(iter(casebook.__path__))
    found = [
        path.name
        for path in Path(folder).rglob("*.py")
        if "ast.parse(" in path.read_text("utf-8")
        and path.name not in ("python_ast.py", "served_child.py")
    ]
    assert found == []
