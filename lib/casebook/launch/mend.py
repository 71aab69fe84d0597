"""A script as its author meant it: line ends and continuations repaired, nothing else touched.

Only faults of form are mended, those where a line was cut from its command; a wrong value stays wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from casebook.launch.analysis import Analysis
from casebook.launch.read import read
from casebook.launch.rules_shell import DASHES, SPACES
from casebook.launch.source import Source

MENDED = frozenset(
    [
        "crlf-line-ends",
        "blank-after-backslash",
        "comment-after-backslash",
        "comment-in-continuation",
        "missing-backslash",
        "missing-space-before-backslash",
        "folded-scalar-continuation",
        "non-ascii-dash",
        "non-ascii-space",
    ]
)


def mended_text(text: str) -> str:
    """``text`` with each continuation made good."""
    text = text.replace("\r\n", "\n")
    text = re.sub(r"\\[ \t]+(?:#[^\n]*)?(?=\n)", r"\\", text)
    text = re.sub(r"(?<=[^\s\\])\\\n(?=--)", " \\\n", text)
    text = re.sub(r"(?<![\w])[" + "".join(DASHES) + r"]-?(?=[A-Za-z])", "--", text)
    text = re.sub("[" + "".join(SPACES) + "]", " ", text)
    lines = text.split("\n")
    kept: list[str] = []
    for number, line in enumerate(lines):
        bare = line.strip()
        continued = bool(kept) and kept[-1].endswith("\\") and not kept[-1].endswith("\\\\")
        following = next(
            (n.strip() for n in lines[number + 1 :] if n.strip() and not n.strip().startswith("#")),
            "",
        )
        if continued and bare.startswith("#") and following.startswith("-"):
            continue
        if bare.startswith("--") and kept and not continued:
            above = next((i for i in range(len(kept) - 1, -1, -1) if kept[i].strip()), None)
            if above is not None and _takes_flags(kept[above]):
                kept[above] = kept[above].rstrip() + " \\"
                del kept[above + 1 :]
        kept.append(line)
    return "\n".join(kept)


def _takes_flags(line: str) -> bool:
    bare = line.strip()
    return not bare.startswith("#") and not bare.endswith(
        (";", "&", "|", "(", "{", "then", "do", "EOF", ":", ">-", ">", "|-")
    )


def read_mended(
    source: Source,
    *,
    kind: str | None = None,
    release: str = "0.5.11",
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] | None = None,
) -> Analysis:
    """The launches of the mended script."""
    text = mended_text(source.text)
    if kind in ("compose", "kubernetes") or source.name.endswith((".yaml", ".yml")):
        text = re.sub(r"(?m)(:|-)(\s+)>([-+]?)\s*$", r"\1\2|\3", text)
    return read(
        Source(source.name, text),
        kind=kind,
        release=release,
        environment=environment,
        arguments=arguments,
    )
