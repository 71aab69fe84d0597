"""Commands that hand a text to another shell: ``ssh``, ``bash -c``, a here-document, ``tmux``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from casebook.launch.field_text import FieldText, joined
from casebook.launch.invocation import Invocation
from casebook.launch.shell_state import State, Variable
from casebook.launch.wrappers import SHELLS, Way

_SSH_VALUED = frozenset("BbcDEeFIiJLlmOopQRSWw")

Nested = tuple[str, FieldText | None, list[FieldText], bool]


def shell_text(way: Way, inner: Invocation, files: Mapping[str, FieldText]) -> Nested | None:
    """``(label, text, positional parameters, fresh environment)`` of a command that reads text."""
    name, words = way.name(), way.words
    if name in SHELLS:
        return _shell(name, words, inner, files)
    if name == "ssh":
        return _ssh(words, inner)
    if name in ("tmux", "screen"):
        return _terminal(name, words)
    if name in ("su", "runuser", "script", "flock") and (
        text := _after(words, ("-c", "--command"))
    ):
        return f"{name} -c", text, [], name in ("su",)
    if name == "sbatch" and (text := _after(words, ("--wrap",))):
        return "sbatch --wrap", text, [], False
    if len(words) and words[0].text.rpartition("/")[2] in files and words[0].text.endswith(".sh"):
        return words[0].text, files[words[0].text.rpartition("/")[2]], list(words[1:]), False
    return None


def _after(words: Sequence[FieldText], options: Iterable[str]) -> FieldText | None:
    for number, word in enumerate(words):
        for option in options:
            if word.text == option and number + 1 < len(words):
                return words[number + 1]
            if option.startswith("--") and word.text.startswith(f"{option}="):
                return word.behind(len(option) + 1)
    return None


def _shell(
    name: str, words: Sequence[FieldText], inner: Invocation, files: Mapping[str, FieldText]
) -> Nested | None:
    position = 1
    reads_stdin = command = False
    while position < len(words) and words[position].text[:1] in "-+" and words[position].text:
        option = words[position].text
        position += 1
        if option == "--":
            break
        if option.startswith("--"):
            position += option in ("--rcfile", "--init-file")
            continue
        command = command or ("c" in option and option[0] == "-")
        reads_stdin = reads_stdin or "s" in option
        position += option.endswith(("o", "O"))
    rest = list(words[position:])
    if command:
        if not rest:
            return None
        return f"{name} -c", rest[0], rest[2:], False
    if rest and not reads_stdin:
        known = files.get(rest[0].text.rpartition("/")[2])
        return None if known is None else (f"{name} {rest[0].text}", known, rest[1:], False)
    return (
        (f"{name} (standard input)", inner.stdin, rest, False) if inner.stdin is not None else None
    )


def _ssh(words: Sequence[FieldText], inner: Invocation) -> Nested | None:
    position, host = 1, ""
    while position < len(words):
        text = words[position].text
        if text == "--":
            position += 1
            continue
        if text.startswith("-") and len(text) > 1 and not host:
            cluster = text[1:]
            valued = next((i for i, c in enumerate(cluster) if c in _SSH_VALUED), None)
            position += 2 if valued is not None and valued == len(cluster) - 1 else 1
            continue
        if host:
            break
        host = text
        position += 1
    if not host:
        return None
    rest = list(words[position:])
    label = f"ssh {host.rpartition('@')[2]}"
    if rest:
        return label, joined(rest, by=" "), [], True
    return (label, inner.stdin, [], True) if inner.stdin is not None else None


def _terminal(name: str, words: Sequence[FieldText]) -> Nested | None:
    texts = [w.text for w in words]
    if name == "tmux" and "send-keys" in texts:
        rest = [
            w
            for w in words[texts.index("send-keys") + 1 :]
            if w.text not in ("Enter", "C-m", "ENTER")
        ]
        if rest and rest[0].text == "-t":
            rest = rest[2:]
        return "tmux send-keys", joined(rest), [], True
    if name == "tmux" and len(words) > 2:
        last = words[-1]
        return ("tmux", last, [], False) if " " in last.text else None
    return None


def child_state(
    way: Way, parent: State, label: str, arguments: Sequence[FieldText], fresh: bool
) -> State:
    """The shell that reads the text: what is exported, and nothing else."""
    outside = f"the environment of `{label}` may set it" if fresh else parent.outside
    child = State(outside=outside, name=label)
    child.variables = {
        name: Variable((value,), exported=True, certain=value.exact, reason=value.reason)
        for name, value in way.env.items()
    }
    child.positional = tuple(arguments)
    return child
