"""What the commands share: the words behind ``--``, lists by comma, and the width of what they print."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from rich.console import Console


def launch_words(command: Sequence[str]) -> str | list[str]:
    """The launch behind ``--``: its words, or one quoted command line."""
    return list(command) if len(command) > 1 else command[0]


def by_comma(text: str) -> list[str]:
    """The names in ``a, b``; at least one."""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise click.UsageError("no name given; write them with commas between.")
    return found


def console(width: int = 140) -> Console:
    """Standard output; a file or a pipe has no width, and a table of names and values wants some."""
    return Console(width=None if sys.stdout.isatty() else width)
