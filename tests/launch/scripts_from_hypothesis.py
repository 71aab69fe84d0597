"""Scripts made by hypothesis, and real bash with a recorder: what each command was really given."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from hypothesis import strategies as st

BASH = shutil.which("bash") or "/bin/bash"
NAMES = ("A", "B", "LONG_NAME", "UNSET")
RECORDER = r"""
rec() { printf '%s\0' "$@"; printf '\036\0'; }
"""

_plain = st.text(alphabet="abcXYZ019_./:=,@%+-", min_size=1, max_size=6)
_special = st.sampled_from(
    ["é", "–", "“", "{", "}", "[", "]", "~x", "!", "^", "a{b", "x=", "--flag", "-x", "0.8"]
)
_quotable = st.text(alphabet="ab \t$`\\\"'{}*?#;&|<>()~é\n", max_size=7)


def _single(text: str) -> str:
    return "'" + text.replace("'", "") + "'"


def _double(text: str) -> str:
    out = []
    for char in text:
        out.append("\\" + char if char in '"$`\\' else char)
    return '"' + "".join(out) + '"'


def _escaped(text: str) -> str:
    return "".join("\\" + c for c in text if c != "\n")


_name = st.sampled_from(NAMES)
_expansion = st.one_of(
    _name.map(lambda n: f"${n}"),
    _name.map(lambda n: f"${{{n}}}"),
    _name.map(lambda n: f'"${n}"'),
    _name.map(lambda n: f'"${{{n}}}"'),
    st.tuples(_name, _plain).map(lambda p: f"${{{p[0]}:-{p[1]}}}"),
    st.tuples(_name, _plain).map(lambda p: f'"${{{p[0]}-{p[1]}}}"'),
    st.tuples(_name, _plain).map(lambda p: f"${{{p[0]}:+{p[1]}}}"),
    st.tuples(_name, _plain).map(lambda p: f'"pre ${{{p[0]}}} \\" {p[1]}"'),
    st.tuples(_name, st.sampled_from(["a", "/", "x ", ".sh"])).map(
        lambda p: f'"${{{p[0]}%{p[1]}}}"'
    ),
    _name.map(lambda n: f"${{#{n}}}"),
    st.sampled_from(
        [
            '"${ARR[@]}"',
            "${ARR[@]}",
            '"${ARR[*]}"',
            "${ARR[1]}",
            "${#ARR[@]}",
            '"$@"',
            "$*",
            "$1",
            '"${2}"',
            "$#",
            "$12",
            "$1_a",
            '"$10"',
        ]
    ),
)
_braces = st.sampled_from(
    [
        "{a,b}",
        "x{1..3}y",
        "{a,{b,c}}",
        "{}",
        "{a}",
        '{"k":1,"j":2}',
        "{x,}z",
        "{3..1}",
        "{01..03}",
        "a{b",
        "{a..c}",
    ]
)
_piece = st.one_of(
    _plain,
    _special,
    _quotable.map(_single),
    _quotable.map(_double),
    st.text(alphabet="ab $'\"\\*;", min_size=1, max_size=3).map(_escaped),
    st.text(alphabet="abc\t \\'", max_size=4).map(
        lambda t: "$'" + t.replace("\\", "\\\\").replace("'", "\\'").replace("\t", "\\t") + "'"
    ),
    _expansion,
    _braces,
)
word = (
    st.lists(_piece, min_size=1, max_size=3)
    .map("".join)
    .filter(lambda w: not w.startswith(("#", "~")) and "~" not in w)
)
_gap = st.sampled_from([" ", "  ", " \\\n  ", "\t", " \\\n"])


@st.composite
def command(draw: st.DrawFn) -> str:
    """``rec`` with words, over one line or several."""
    out = "rec"
    for one in draw(st.lists(word, max_size=5)):
        out += draw(_gap) + one
    return out


_value = st.one_of(
    _plain, _quotable.map(_single), _quotable.map(_double), st.just(""), st.just('"$B c"')
)
_assignment = st.tuples(
    _name.filter(lambda n: n != "UNSET"), st.sampled_from(["=", "+="]), _value
).map("".join)
_array = st.lists(word, max_size=3).map(lambda ws: f"ARR=({' '.join(ws)})")
_statement = st.deferred(
    lambda: st.one_of(
        command(),
        command(),
        _assignment,
        _assignment.map(lambda a: f"export {a}"),
        _array,
        word.map(lambda w: f"ARR+=({w})"),
        st.tuples(_plain, command()).map(
            lambda p: f"if [ a = a ]; then\n{p[1]}\nelse\nrec no {p[0]}\nfi"
        ),
        st.tuples(st.lists(word, max_size=3), command()).map(
            lambda p: f"for A in {' '.join(p[0])}; do\n{p[1]}\ndone"
        ),
        st.tuples(command(), st.lists(word, max_size=3)).map(
            lambda p: f"f() {{\n{p[0]}\n}}\nf {' '.join(p[1])}"
        ),
        st.lists(word, max_size=3).map(lambda ws: f"set -- {' '.join(ws)}"),
        command().map(lambda c: f"( {c} )"),
        command().map(lambda c: f"true && {c}"),
        _name.map(lambda n: f"[[ -n ${n} ]] && rec set {n}"),
        _name.map(lambda n: f'if [ -z "${n}" ]; then rec empty; fi'),
        st.just("unset B"),
        st.just("# a comment"),
    )
)
script = st.lists(_statement, min_size=1, max_size=6).map("\n".join)


def run(text: str, folder: Path) -> list[list[str]] | None:
    """The words of each ``rec`` that bash runs; None if bash refuses the script."""
    done = subprocess.run(
        [BASH, "--norc", "-c", RECORDER + text, "bash"],
        capture_output=True,
        cwd=folder,
        env={"PATH": "/nonexistent", "HOME": "/home/user", "LC_ALL": "C.UTF-8"},
        check=False,
    )
    if (
        b"syntax error" in done.stderr
        or b"unexpected EOF" in done.stderr
        or b"command not found" in done.stderr
        or b"bad substitution" in done.stderr
    ):
        return None
    calls, current = [], []
    for item in done.stdout.split(b"\0")[:-1]:
        if item == b"\x1e":
            calls.append(current)
            current = []
        else:
            current.append(item.decode("utf-8", "replace"))
    return calls
