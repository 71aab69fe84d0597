"""Whatever the text, it is read to an end: broken quotes and half a script are data, not our fault."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripts_from_hypothesis import run

from casebook.launch.invocation import Reading
from casebook.launch.shell_state import state_for
from casebook.launch.source import Source
from casebook.launch.walk import walk

TOKENS = [
    *"'\"$\\{}()[];\n|&<>`aA=@*#!?-+1x0%/~é😀\t ",
    *("$'", "\\\\", "${", "$(", "&&", "||", "<<EOF\n", "\nEOF\n", "<<<", "+=", "\r\n", "$((", "))"),
    *("rec ", "if ", "then ", "fi\n", "for A in ", "do ", "done\n", "case ", "esac\n", "in "),
    *("function f ", "export ", "eval ", "ssh h ", "bash -c ", "[[ ", "]] ", "declare -a "),
    *(
        "local ",
        "read A",
        "set -- ",
        "shift\n",
        "$1",
        "$@",
        "$12",
        "$0a",
        "exec ",
        "source ",
        "A=(",
    ),
]


def _read(text: str) -> Reading:
    return walk(Source("t", text).whole(), state_for({"HOME": "/home/user"}, "", []))


@settings(max_examples=3000, deadline=None, derandomize=True, database=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=24).map("".join))
def test_no_text_breaks_the_reader(text: str) -> None:
    _read(text)


@pytest.mark.parametrize(
    "text",
    [
        "rec $'\\\\''$;'''",  # the grammar ends the quote early and names an expansion ''
        "A$|do |fi\nfor A in ?\t1fi\n$@~",  # a redirection with nothing behind the text's end
        "set -- rec do |bash -c +=for A in [[ declare -a for A in [[ rec bash -c =~",
        "rec $00 $0a ${00}",
    ],
)
def test_what_once_broke_it(text: str) -> None:
    _read(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('ARR=(\\ )\nrec "${ARR[@]}"', [[" "]]),
        ('ARR=(\\  a\\ )\nrec "${ARR[@]}"', [[" ", "a "]]),
        ('for A in \\ \\;; do\nrec "$A"\ndone', [[" ;"]]),
        ("set -- one two\nrec $12 $1_a", [["one2", "one_a"]]),
        ("rec \\\n  \\ \nrec a", [[" "], ["a"]]),
        ("rec a \\\n  \\ \\\n \\ b\nrec c", [["a", " ", " b"], ["c"]]),
    ],
)
def test_as_bash_reads_it(text: str, words: list[list[str]], tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert run(text, tmp_path) == words
    reading = _read(text)
    assert reading.exact
    assert [[w.text for w in i.words[1:]] for i in reading.invocations if i.name == "rec"] == words
