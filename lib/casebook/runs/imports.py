"""A second or two saved in each process that reads notebooks."""

from __future__ import annotations

import sys


def skip_slow_parser() -> None:
    """Call before nbformat, papermill or nbconvert is imported.

    jsonschema tries to import ``rfc3987_syntax``, for a check of URIs that no notebook needs, and goes
    on without it; the import builds a parser and takes about a second.
    """
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]


def skip_hdfs() -> None:
    """Call before papermill is imported where it writes local files alone.

    It imports all of ``pyarrow`` for the case that a path is one of HDFS, and goes on without it.
    """
    sys.modules.setdefault("pyarrow", None)  # type: ignore[arg-type]
