"""Rules about the text of a shell script: what breaks a command into two before any word exists."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from casebook.launch.bash_tree import end, start
from casebook.launch.invocation import Invocation, Reading
from casebook.launch.source import Text
from casebook.launch.suspicion import Suspicion, counted, error, warning

_FLAG = re.compile(r"(?<![^\s\\])--?[A-Za-z][\w-]*")
_BLANK_AFTER = re.compile(r"\\([ \t\u00a0]+)(#[^\n]*)?(?=\r?\n)")
_GLUED = re.compile(r"(?<=[^\s\\])\\\r?\n(?=--?[A-Za-z])")
_SERVERISH = re.compile(r"sglang|launch_server|vllm|trtllm|dynamo|--model|python[0-9.]*\s+-m\s")
DASHES = dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d", "dash")
QUOTES = dict.fromkeys(
    "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u2032\u2033\uff02\uff07\u00ab\u00bb", "quote"
)
SPACES = dict.fromkeys(
    "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u200b\u200c\u200d\u202f\u205f\u2060\u3000\ufeff",
    "space",
)
STRANGE = DASHES | QUOTES | SPACES
_STRANGE = re.compile("[" + "".join(STRANGE) + "]")
_WINDOW = 1000
"""How far back a comment looks for the line it follows."""
_QUOTED = frozenset(
    {"string", "raw_string", "ansi_c_string", "heredoc_body", "comment", "translated_string"}
)


def suspicions(reading: Reading) -> Iterator[Suspicion]:
    """All faults of one shell text."""
    text, protected = reading.text, _protected(reading.root)
    if _SERVERISH.search(text.text) is None:
        return
    broken = list(_broken_continuations(text, protected))
    yield from broken
    yield from _comments(text, reading.root)
    yield from _glued(text, protected)
    yield from _missing_backslash(
        text, reading, {line for s in broken for line in (_line(text, s.start),)}
    )
    yield from _strange_characters(reading)


def carriage_returns(text: str) -> Iterator[Suspicion]:
    """CRLF line ends; looked for in the file as it is."""
    count = text.count("\r\n")
    if not count:
        return
    first = text.index("\r\n")
    continued = len(re.findall(r"\\\r\n", text))
    hit = re.search(r"\\\r\n", text)
    at = hit.start() + 1 if hit else first
    effect = (
        f"each backslash quotes the carriage return instead of the line's end: {continued} continued "
        "lines become commands of their own, and their flags never reach the server"
        if continued
        else "the last word of each line gets a carriage return as its last character"
    )
    yield error(
        "crlf-line-ends",
        (at, at + 1),
        f"the file has Windows line ends (CRLF) on {counted(count, 'line')}",
        effect,
        "save it with Unix line ends: `sed -i 's/\\r$//' FILE`, and `* text=auto eol=lf` in .gitattributes",
    )


def _protected(root: Node) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in _QUOTED:
            spans.append((start(node), end(node)))
        else:
            stack.extend(node.children)
    return sorted(spans)


def _inside(spans: list[tuple[int, int]], position: int) -> bool:
    import bisect

    number = bisect.bisect_right(spans, (position, 1 << 60)) - 1
    return number >= 0 and spans[number][0] <= position < spans[number][1]


def _line(text: Text, root: int) -> int:
    try:
        return text.text.count("\n", 0, list(text.at).index(root))
    except ValueError:
        return -1


def _following_flags(text: Text, position: int) -> tuple[str, ...]:
    """Flags on the lines behind ``position`` that were meant to belong to the command."""
    found: list[str] = []
    for line in text.text[position : position + 20_000].split("\n"):
        bare = line.strip()
        if not bare or (bare.startswith("#") and not found):
            if not bare:
                break
            continue
        if not found and not bare.startswith("-"):
            break
        found += [m[0] for m in _FLAG.finditer(bare)]
        if not bare.endswith("\\"):
            break
    return tuple(dict.fromkeys(found))


def _loss(flags: tuple[str, ...]) -> str:
    if not flags:
        return "the command ends at this line"
    return (
        f"the command ends here and what follows is a second command; {counted(len(flags), 'flag')} "
        f"never reach{'es' if len(flags) == 1 else ''} the server ({', '.join(flags[:8])}{' ...' if len(flags) > 8 else ''})"
    )


def _broken_continuations(text: Text, protected: list[tuple[int, int]]) -> Iterator[Suspicion]:
    for match in _BLANK_AFTER.finditer(text.text):
        if match.start() and text.text[match.start() - 1] == "\\":
            continue
        if _inside(protected, match.start()):
            continue
        flags = _following_flags(text, match.end() + 1)
        at = _span(text, match.start(1), match.end(1))
        if match[2]:
            yield error(
                "comment-after-backslash",
                _span(text, match.start(), match.end()),
                "a comment stands behind the backslash, so the backslash quotes a blank and not the line's end",
                _loss(flags),
                "take the comment away, or put it on a line above the whole command",
                flags,
            )
        elif flags:
            yield error(
                "blank-after-backslash",
                at,
                "a blank stands behind the backslash, so the backslash quotes the blank and not the line's end",
                _loss(flags),
                "remove the blanks at the end of the line: `sed -i 's/\\\\[ \\t]*$/\\\\/' FILE`",
                flags,
            )
        else:
            yield warning(
                "blank-after-backslash",
                at,
                "a blank stands behind the last backslash of the command",
                "the command gets one more argument, a single blank",
                "remove the backslash and the blanks",
            )


def _span(text: Text, first: int, last: int) -> tuple[int, int]:
    return text.at[first], text.at[max(first, last - 1)] + 1


def _comments(text: Text, root: Node) -> Iterator[Suspicion]:
    stack = [root]
    comments: list[Node] = []
    while stack:
        node = stack.pop()
        if node.type == "comment":
            comments.append(node)
        stack.extend(node.children)
    for node in sorted(comments, key=start):
        before = text.text[max(0, start(node) - _WINDOW) : start(node)].rstrip(" \t")
        if not re.search(r"(?<!\\)(\\\\)*\\\r?\n$", before):
            continue
        flags = _following_flags(text, end(node) + 1)
        if not flags:
            continue
        yield error(
            "comment-in-continuation",
            _span(text, start(node), end(node)),
            "a comment stands between continued lines; it ends the command",
            _loss(flags),
            "move the comment above the command, or keep the flags in a bash array, where comments are allowed",
            flags,
        )


def _glued(text: Text, protected: list[tuple[int, int]]) -> Iterator[Suspicion]:
    for match in _GLUED.finditer(text.text):
        if _inside(protected, match.start()):
            continue
        before = re.search(r"[^\s]*$", text.text[max(0, match.start() - 200) : match.start()])
        after = re.match(r"[^\s]*", text.text[match.end() : match.end() + 200])
        flag = after[0] if after else ""
        made = f"{before[0] if before else ''}{flag}"
        yield error(
            "missing-space-before-backslash",
            _span(text, match.start(), match.start() + 1),
            f"no blank stands before the backslash and none begins the next line; the two words become one: `{made[:60]}`",
            f"{flag.partition('=')[0]} never reaches the server as a flag, and the value before it is wrong",
            "put a blank before the backslash",
            (flag.partition("=")[0],),
        )


def _missing_backslash(text: Text, reading: Reading, explained: set[int]) -> Iterator[Suspicion]:
    positions = {root: i for i, root in reversed(list(enumerate(text.at))) if root >= 0}
    for invocation in reading.invocations:
        word = invocation.words[0]
        if not re.match(r"--?[A-Za-z][\w-]*", word.text) or word.variables:
            continue
        here = positions.get(invocation.start)
        if here is None:
            continue
        line_start = text.text.rfind("\n", 0, here) + 1
        if text.text[line_start:here].strip() or not line_start:
            yield from _flag_as_command(invocation)
            continue
        above = text.text[:line_start].rstrip("\n")
        number = text.text.count("\n", 0, len(above))
        blank_line = text.text[len(above) : line_start].count("\n") > 1
        last_line = above[above.rfind("\n") + 1 :]
        if (
            number in explained
            or _BLANK_AFTER.search(last_line + "\n")
            or "\r" in last_line
            or last_line.lstrip().startswith("#")
        ):
            continue
        flags = _following_flags(text, line_start)
        last = max(len(above) - 1, 0)
        what = "an empty line stands between" if blank_line else "no backslash stands at the end of"
        yield error(
            "missing-backslash",
            _span(text, last, last + 1),
            f"{what} this line and the flags below it",
            _loss(flags),
            "end the line with a blank and a backslash",
            flags,
        )


def _flag_as_command(invocation: Invocation) -> Iterator[Suspicion]:
    flags = tuple(w.text.partition("=")[0] for w in invocation.words if w.text.startswith("--"))
    yield error(
        "flag-to-wrong-process",
        (invocation.start, invocation.end),
        f"`{flags[0] if flags else invocation.name}` stands where a command is expected",
        f"the shell looks for a program of that name; {counted(len(flags), 'flag')} never reach the server",
        "put the flags before the `|`, `&`, `;` or `&&` that ends the server's command",
        flags,
    )


def _strange_characters(reading: Reading) -> Iterator[Suspicion]:
    text = reading.text
    if not _STRANGE.search(text.text):
        return
    for invocation in reading.invocations:
        for word in invocation.words:
            match = _STRANGE.search(word.text)
            if match is None:
                continue
            kind = STRANGE[match[0]]
            first = kind == "dash" and match.start() == 0
            if kind == "dash" and not first:
                continue
            if word.quoted and kind != "dash" and not (kind == "quote" and match.start() == 0):
                continue
            at = word.value.at[match.start()]
            name = f"U+{ord(match[0]):04X}"
            effects = {
                "dash": f"`{word.text[:40]}` is no flag for the parser: it and its value are refused, or taken for a plain argument",
                "quote": "bash takes it for a letter: the word is split at its blanks and keeps the marks",
                "space": "bash does not split words at it: two words become one",
            }
            flag = "--" + word.text.lstrip("".join(DASHES) + "-") if first else word.text
            yield error(
                f"non-ascii-{kind}",
                (at, at + 1),
                f"a {kind} that is not ASCII ({name}), as word processors and chat programs put it",
                effects[kind],
                f"type it again by keyboard{f': `{flag[:40]}`' if first else ''}",
                (flag,) if first else (),
            )
