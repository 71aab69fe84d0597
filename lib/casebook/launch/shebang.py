"""The interpreter that a script's first line names, and what it means for the reading.

The grammar and the sandbox know bash alone. A script for ``sh``, ``dash``, ``zsh`` or Python is read
all the same, but never run: bash would run it in its own way, and its words would pass for exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from casebook.launch.source import Source
from casebook.launch.suspicion import Suspicion, note

_LINE = re.compile(r"#!\s*(\S+)((?:[ \t]+\S+)*)[ \t]*\r?(?=\n|\Z)")


def interpreter(source: Source) -> str:
    """Name of the program in the ``#!`` line, ``env`` looked through; empty without such a line."""
    found = _LINE.match(source.text)
    if found is None:
        return ""
    words = [found[1], *found[2].split()]
    if words[0].rpartition("/")[2] == "env":
        rest = [w for w in words[1:] if not w.startswith("-") and "=" not in w]
        words = rest or words
    return words[0].rpartition("/")[2]


def runs_in_sandbox(source: Source) -> bool:
    """Whether the sandbox's shell is the one that the script asks for."""
    return interpreter(source) in ("", "bash", "rbash")


def suspicions(source: Source) -> Iterator[Suspicion]:
    """A note where the script asks for another program than bash."""
    if runs_in_sandbox(source):
        return
    name = interpreter(source)
    end = _LINE.match(source.text)
    yield note(
        "read-not-run",
        (0, end.end() if end else 1),
        f"the first line asks for `{name}`; only bash scripts are run in the sandbox",
        f"the script is read without running it{_difference(name)}",
        "write `#!/bin/bash` if bash is what runs it; else hold the words against a log (`casebook ladder`)",
    )


def _difference(name: str) -> str:
    if name.startswith("python"):
        return ""
    if name in ("zsh", "fish", "csh", "tcsh"):
        return f"; where {name} reads words otherwise than bash (unquoted variables), they may be others"
    return f"; arrays and other words of bash alone are errors to {name}"
