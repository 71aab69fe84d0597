"""From the commands of a script to the servers they start, through wrappers and further shells.

``nohup``, ``numactl`` or ``docker run`` hand words on; ``ssh``, ``bash -c`` and a here-document hand
*text* on, which the next shell reads again. Each such text is kept, so that a reader can see what
one level of quotes did to a flag.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from casebook.launch.command import entry_length
from casebook.launch.expand import FieldText, joined
from casebook.launch.shell_state import State, Variable
from casebook.launch.source import Text
from casebook.launch.walk import Invocation, Reading, walk

MAX_SHELLS = 8
SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash"})
# Programs that start the program named later among their words; the options between are theirs.
WRAPPERS = frozenset(
    [
        "accelerate",
        "apptainer",
        "catchsegv",
        "chroot",
        "chrt",
        "cgexec",
        "command",
        "conda",
        "coproc",
        "cpulimit",
        "doas",
        "dumb-init",
        "env",
        "enroot",
        "exec",
        "firejail",
        "flock",
        "gdb",
        "gosu",
        "ionice",
        "kubectl",
        "ltrace",
        "mamba",
        "micromamba",
        "mpiexec",
        "mpirun",
        "ncu",
        "nerdctl",
        "nice",
        "nohup",
        "nsys",
        "numactl",
        "perf",
        "pipenv",
        "poetry",
        "prlimit",
        "proot",
        "py-spy",
        "ray",
        "runuser",
        "setarch",
        "setpriv",
        "setsid",
        "singularity",
        "srun",
        "stdbuf",
        "strace",
        "su-exec",
        "sudo",
        "systemd-inhibit",
        "systemd-run",
        "taskset",
        "time",
        "timeout",
        "tini",
        "tini-static",
        "torchrun",
        "unbuffer",
        "uv",
        "uvx",
        "xvfb-run",
        "docker",
        "podman",
        "pixi",
        "rye",
        "hatch",
        "chpst",
        "s6-setuidgid",
        "memray",
        "viztracer",
        "ts",
        "oc",
        "crictl",
        "compose",
        "docker-compose",
    ]
)
CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
# Beyond these, what the script exported does not arrive by itself.
ENVIRONMENT_ENDS = frozenset(
    {"docker", "podman", "nerdctl", "ssh", "sudo", "doas", "kubectl", "oc"}
)
_SSH_VALUED = frozenset("BbcDEeFIiJLlmOopQRSWw")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_PROGRAM = re.compile(r"(?:.*/)?(?:python[0-9.]*t?|sglang|pypy3?|py)", re.ASCII)


@dataclass(frozen=True)
class Stage:
    """A text (or words) as one reader got it."""

    reader: str
    """Who reads it: ``bash``, ``ssh gpu-node``, ``bash -c``."""
    text: Text


@dataclass(frozen=True)
class Server:
    """One SGLang server that a script starts, its arguments with their places."""

    arguments: tuple[FieldText, ...]
    """The words after the entry point."""
    entry: tuple[FieldText, ...]
    env: Mapping[str, FieldText]
    left_behind: Mapping[str, FieldText]
    """Variables set in the script that the server does not get."""
    invocation: Invocation
    """The command of the outermost text that leads to it."""
    inner: Invocation
    """The command of the innermost text."""
    stages: tuple[Stage, ...]
    via: tuple[str, ...]
    """Wrappers and shells passed on the way."""
    ended_at: str = ""
    """The program at which exported variables stop (``ssh``, ``docker``)."""
    before_entry: tuple[FieldText, ...] = ()
    """Words in front of the entry point that belong to wrappers."""

    @property
    def exact(self) -> bool:
        """Whether the words are what the server gets, whatever the surroundings."""
        return self.inner.exact and self.invocation.exact and not self.reason

    @property
    def reason(self) -> str:
        """Why the words are not certain; empty if they are."""
        for word in self.arguments:
            if not word.exact:
                return word.reason
        return self.inner.reason or self.invocation.reason


@dataclass
class Found:
    """All that a shell text leads to."""

    servers: list[Server] = field(default_factory=list)
    readings: list[tuple[tuple[Stage, ...], Reading]] = field(default_factory=list)
    others: list[tuple[Invocation, tuple[str, ...]]] = field(default_factory=list)
    """Commands that start no server, with the way to them."""
    notes: list[str] = field(default_factory=list)


def follow(text: Text, state: State, reader: str = "bash") -> Found:
    """Read a script and everything it hands on to other shells."""
    found = Found()
    _read(text, state, (Stage(reader, text),), (), None, None, found, {})
    return found


def follow_words(
    words: Sequence[FieldText], env: Mapping[str, FieldText], text: Text, reader: str, outside: str
) -> Found:
    """Pursue a command that is given as a list of words (no shell has read it)."""
    found = Found()
    start = next((w.value.start for w in words if w.value.start >= 0), 0)
    end_ = max((w.value.end for w in words), default=start)
    invocation = Invocation(tuple(words), dict(env), {}, {}, start, max(end_, start + 1))
    way = _Way(list(words), dict(env), [], {})
    _pursue(way, invocation, invocation, (Stage(reader, text),), found, {}, State(outside=outside))
    return found


def _read(
    text: Text,
    state: State,
    stages: tuple[Stage, ...],
    via: tuple[str, ...],
    outer: Invocation | None,
    stdin: FieldText | None,
    found: Found,
    files: dict[str, FieldText],
    ended: str = "",
    lost: Mapping[str, FieldText] | None = None,
) -> None:
    reading = walk(text, state)
    found.readings.append((stages, reading))
    found.notes.extend(reading.notes)
    for name, content in reading.written.items():
        files[name.rpartition("/")[2]] = content
    for invocation in reading.invocations:
        if invocation.stdin is None and stdin is not None:
            invocation = replace(invocation, stdin=stdin)
        way = _Way(
            list(invocation.words), dict(invocation.env), list(via), dict(invocation.unexported)
        )
        way.left.update(lost or {})
        way.ended = ended
        _pursue(way, invocation, outer or invocation, stages, found, files, state)


@dataclass
class _Way:
    """Words on their way through wrappers."""

    words: list[FieldText]
    env: dict[str, FieldText]
    via: list[str]
    left: dict[str, FieldText]
    ended: str = ""
    skipped: list[FieldText] = field(default_factory=list)

    def name(self) -> str:
        return self.words[0].text.rpartition("/")[2] if self.words else ""


def _pursue(
    way: _Way,
    inner: Invocation,
    outer: Invocation,
    stages: tuple[Stage, ...],
    found: Found,
    files: dict[str, FieldText],
    state: State,
    descend: Callable[..., None] | None = None,
) -> None:
    for _ in range(64):
        _take_assignments(way)
        if not way.words:
            return
        length = entry_length([w.text for w in way.words]) or _module_of(way)
        if length:
            found.servers.append(
                Server(
                    tuple(way.words[length:]),
                    tuple(way.words[:length]),
                    way.env,
                    way.left,
                    outer,
                    inner,
                    stages,
                    tuple(way.via),
                    way.ended,
                    tuple(way.skipped),
                )
            )
            return
        name = way.name()
        nested = _shell_text(way, inner, files)
        if nested is not None:
            label, content, arguments, fresh = nested
            if len(stages) > MAX_SHELLS or content is None:
                break
            if fresh:
                _end_environment(way, name)
            child = _child_state(way, state, label, arguments, fresh)
            more = (*stages, Stage(label, content.value))
            if not content.exact:
                found.notes.append(f"What `{label}` reads is not certain: {content.reason}.")
            (descend or _read)(
                content.value,
                child,
                more,
                (*way.via, label),
                outer,
                _own_stdin(name, inner, content),
                found,
                files,
                way.ended,
                way.left,
            )
            return
        if name not in WRAPPERS or not _unwrap(way, name):
            break
    found.others.append((inner, tuple(way.via)))


def _own_stdin(name: str, inner: Invocation, content: FieldText) -> FieldText | None:
    """A command's here-document goes to what runs behind ``ssh host command`` too."""
    if inner.stdin is None or content.value is inner.stdin.value:
        return None
    return inner.stdin if name == "ssh" or name in SHELLS else None


def _take_assignments(way: _Way) -> None:
    while way.words and _ASSIGNMENT.match(way.words[0].text):
        word = way.words.pop(0)
        name, _, _ = word.text.partition("=")
        way.env[name] = replace(word, value=word.value.cut(len(name) + 1, len(word.value)))


def _module_of(way: _Way) -> int:
    """``torchrun ... -m sglang.launch_server``: the wrapper runs the module itself."""
    if way.via[-1:] not in (["torchrun"], ["accelerate"]):
        return 0
    texts = [w.text for w in way.words]
    if (
        texts[:1] == ["-m"]
        and texts[1:2]
        and texts[1] in ("sglang.launch_server", "sglang.srt.launch_server")
    ):
        return 2
    return 0


def _unwrap(way: _Way, name: str) -> bool:
    """Drop a wrapper and its own words; False if no program follows."""
    way.via.append(name)
    rest = way.words[1:]
    start = _program_at(name, rest)
    if start is None:
        return False
    own = rest[:start]
    way.skipped.extend(own)
    if name in ENVIRONMENT_ENDS and not _keeps_environment(name, own):
        _end_environment(way, name)
    if name == "env":
        _env_options(way, own)
    if name in CONTAINERS or name in ("apptainer", "singularity"):
        way.env.update(_container_env(own, way.left))
    for word in own:
        if name in ("env", "sudo", "doas") and _ASSIGNMENT.match(word.text):
            variable = word.text.partition("=")[0]
            way.env[variable] = replace(
                word, value=word.value.cut(len(variable) + 1, len(word.value))
            )
    way.words = rest[start:]
    return True


def _program_at(name: str, words: Sequence[FieldText]) -> int | None:
    for position, word in enumerate(words):
        base = word.text.rpartition("/")[2]
        if name in ("torchrun", "accelerate") and word.text == "-m":
            return position
        if base in WRAPPERS or base in SHELLS or base == "ssh" or _PROGRAM.fullmatch(word.text):
            previous = words[position - 1].text if position else ""
            if _PROGRAM.fullmatch(word.text) or not previous.startswith("--") or "=" in previous:
                return position
        if name == "torchrun" and word.text.endswith("launch_server.py"):
            return position
    return None


def _keeps_environment(name: str, own: Sequence[FieldText]) -> bool:
    if name in ("sudo", "doas"):
        return any(
            w.text in ("-E", "--preserve-env") or w.text.startswith("--preserve-env=") for w in own
        )
    return False


def _end_environment(way: _Way, name: str) -> None:
    way.left.update(way.env)
    way.env = {}
    way.ended = way.ended or name


def _env_options(way: _Way, own: Sequence[FieldText]) -> None:
    texts = [w.text for w in own]
    if any(t in ("-i", "-", "--ignore-environment") for t in texts):
        _end_environment(way, "env -i")
    for option, value in itertools.pairwise(texts):
        if option in ("-u", "--unset"):
            way.env.pop(value, None)


def _container_env(
    own: Sequence[FieldText], outer: Mapping[str, FieldText]
) -> dict[str, FieldText]:
    """``-e NAME=value`` and ``-e NAME`` of ``docker run``."""
    given: dict[str, FieldText] = {}
    waiting = False
    for word in own:
        value: FieldText | None = None
        if waiting:
            value, waiting = word, False
        elif word.text in ("-e", "--env"):
            waiting = True
        elif word.text.startswith("--env="):
            value = replace(word, value=word.value.cut(6, len(word.value)))
        elif re.match(r"-e[A-Za-z_]", word.text):
            value = replace(word, value=word.value.cut(2, len(word.value)))
        if value is None:
            continue
        name, equals, _ = value.text.partition("=")
        if equals:
            given[name] = replace(value, value=value.value.cut(len(name) + 1, len(value.value)))
        elif name in outer:
            given[name] = outer[name]
    return given


Nested = tuple[str, FieldText | None, list[FieldText], bool]


def _shell_text(way: _Way, inner: Invocation, files: Mapping[str, FieldText]) -> Nested | None:
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
                return replace(word, value=word.value.cut(len(option) + 1, len(word.value)))
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


def _child_state(
    way: _Way, parent: State, label: str, arguments: Sequence[FieldText], fresh: bool
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


def walk_all(found: Found) -> Iterator[tuple[tuple[Stage, ...], Invocation]]:
    """Every command of every text, outermost first."""
    for stages, reading in found.readings:
        for invocation in reading.invocations:
            yield stages, invocation
