"""The launches of SGLang's own documentation: no alarm where there is no fault, and the faults it has.

The launch lines stand as facts in ``documented.toml``, each with its page. Every one is laid out in
several ways (one line, continued, an array, a list of a pod) and read for two releases: the words must
arrive as they stand, without a finding of severity error. What a later release truly refuses of an older
page stands in ``REFUSED_LATER``, as its own parser said it.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from casebook.launch.read import read
from casebook.launch.source import Source

DATA = tomllib.loads((Path(__file__).parent / "documented.toml").read_text("utf-8"))
SERVER = "python3 -m sglang.launch_server"
RELEASES = ("0.5.11", "0.5.20")
REFUSED_LATER = {("0.5.20", "ambiguous-flag", ("--cuda-graph-max-bs",))}
"""``ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode, ...``: 0.5.20's argparse."""


def lines(faulty: bool) -> list[tuple[dict[str, str], str]]:
    """Each page with each of its launch lines."""
    pages = [page for page in DATA["pages"] if bool(page.get("fault")) is faulty]
    return [(page, line.strip()) for page in pages for line in page["lines"]]


def words(line: str) -> list[str]:
    """The line's words with their quotes kept."""
    lexer = shlex.shlex(line, posix=False, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    return list(lexer)


def options(line: str) -> list[str]:
    """One text for each option with its values."""
    found: list[str] = []
    for word in words(line):
        if word.startswith("--"):
            found.append(word)
        else:
            found[-1] += f" {word}"
    return found


def layouts(page: dict[str, str], line: str) -> Iterator[tuple[str, str]]:
    """File name and text of each way to write the launch."""
    start = f"{page['before']} {SERVER}" if "before" in page else SERVER
    pieces = options(line)
    form = page.get("form", "")
    continued = " \\\n    ".join([start, *pieces])
    if form == "backslash at the end":
        yield "a.sh", continued + " \\\n"
        yield "a.sh", continued + " \\\n\n"
        return
    if form == "blanks before each backslash":
        yield "a.sh", "\\\n    ".join(f"{p:<70}" for p in [start, *pieces]).rstrip() + "\n"
        return
    if form.startswith("tabs"):
        broken = [w for p in pieces for w in p.split(" ")]
        yield "a.sh", " \\\n\t".join([start, *broken]) + "\n"
        return
    yield "a.sh", f"{start} {line}\n"
    yield "a.sh", f"#!/bin/bash\nset -e\n# the server\n{continued}\n\necho done\n"
    listed = "\n  ".join(pieces)
    yield "a.sh", f'ARGS=(\n  {listed}\n)\n{start} "${{ARGS[@]}}"\n'
    yield "a.sh", f"{continued} > server.log 2>&1 &\nwait\n"
    if "$" not in line and "before" not in page:
        plain = shlex.split(line)
        pod = {"kind": "Pod", "spec": {"containers": [{"name": "s", "image": "sglang"}]}}
        pod["spec"]["containers"][0] |= {"command": SERVER.split(), "args": plain}  # type: ignore[index]
        yield "pod.json", json.dumps({"apiVersion": "v1", **pod})


def names(faulty: bool) -> list[str]:
    return [f"{Path(page['page']).stem} {line[:40]}" for page, line in lines(faulty)]


@pytest.mark.parametrize(("page", "line"), lines(False), ids=names(False))
def test_a_documented_launch_gives_no_error(page: dict[str, str], line: str) -> None:
    for name, text in layouts(page, line):
        for release in RELEASES:
            found = read(Source(name, text), release=release)
            errors = [f for f in found.errors if (release, f.rule, f.flags) not in REFUSED_LATER]
            assert not errors, text + "\n" + "\n".join(str(f) for f in errors)
            assert len(found.launches) == 1, text
            if "$" not in line:
                assert list(found.launches[0].launch.argv) == shlex.split(line), text


@pytest.mark.parametrize("file", DATA["files"], ids=lambda f: f["page"])
def test_a_documented_file_gives_no_error(file: dict[str, str]) -> None:
    for release in RELEASES:
        found = read(Source(file["name"], file["text"].lstrip()), release=release)
        assert not found.errors, [str(f) for f in found.errors]
        assert found.launches


@pytest.mark.parametrize(("page", "line"), lines(True), ids=names(True))
def test_a_fault_of_the_documentation_is_found(page: dict[str, str], line: str) -> None:
    """The page has a comment behind a backslash: the options after it never reach the server."""
    start = f"{page.get('before', '')} {SERVER}".strip()
    pieces = options(line)
    hurt = next(n for n, piece in enumerate(pieces) if piece.endswith(page["after"]))
    pieces[hurt] += " \\ # here"
    text = start + " \\\n  "
    text += "\n  ".join(p if n == hurt else f"{p} \\" for n, p in enumerate(pieces))
    found = read(Source("a.sh", text.removesuffix(" \\") + "\n"))
    assert page["fault"] in [f.rule for f in found.errors]


def test_there_are_enough_of_them() -> None:
    correct = {line for _, line in lines(False)}
    assert len(correct) + len(DATA["files"]) >= 50
    assert all(page["page"] and page["at"] for page in DATA["pages"] + DATA["files"])
    assert len({page["page"] for page in DATA["pages"] + DATA["files"]}) >= 15
