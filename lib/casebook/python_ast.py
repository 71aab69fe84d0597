"""``ast.parse``, one thread at a time.

Up to Python 3.11 the converter keeps its recursion depth in the interpreter and not in the call: two threads
that parse at once end in ``SystemError: AST constructor recursion depth mismatch``. Cases and releases are
asked by threads, and each reads SGLang's source, so everything here that parses Python comes this way.
"""

from __future__ import annotations

import ast
import threading

_one = threading.Lock()


def parse(text: str) -> ast.Module:
    """The tree of a module. Raises SyntaxError."""
    with _one:
        return ast.parse(text)


def parse_expression(text: str) -> ast.expr:
    """The tree of one expression. Raises SyntaxError."""
    with _one:
        return ast.parse(text, mode="eval").body
