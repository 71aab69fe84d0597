"""Programs that hand their words on to another program, and what they do to its environment."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from casebook.launch.field_text import FieldText

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

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)

_PROGRAM = re.compile(r"(?:.*/)?(?:python[0-9.]*t?|sglang|pypy3?|py)", re.ASCII)


@dataclass
class Way:
    """Words on their way through wrappers."""

    words: list[FieldText]
    env: dict[str, FieldText]
    via: list[str]
    left: dict[str, FieldText]
    ended: str = ""
    skipped: list[FieldText] = field(default_factory=list)

    def name(self) -> str:
        return self.words[0].text.rpartition("/")[2] if self.words else ""


def take_assignments(way: Way) -> None:
    while way.words and _ASSIGNMENT.match(way.words[0].text):
        word = way.words.pop(0)
        name, _, _ = word.text.partition("=")
        way.env[name] = word.behind(len(name) + 1)


def module_of(way: Way) -> int:
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


def unwrap(way: Way, name: str) -> bool:
    """Drop a wrapper and its own words; False if no program follows."""
    way.via.append(name)
    rest = way.words[1:]
    start = _program_at(name, rest)
    if start is None:
        return False
    own = rest[:start]
    way.skipped.extend(own)
    if name in ENVIRONMENT_ENDS and not _keeps_environment(name, own):
        end_environment(way, name)
    if name == "env":
        _env_options(way, own)
    if name in CONTAINERS or name in ("apptainer", "singularity"):
        way.env.update(_container_env(own, way.left))
    for word in own:
        if name in ("env", "sudo", "doas") and _ASSIGNMENT.match(word.text):
            variable = word.text.partition("=")[0]
            way.env[variable] = word.behind(len(variable) + 1)
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


def end_environment(way: Way, name: str) -> None:
    way.left.update(way.env)
    way.env = {}
    way.ended = way.ended or name


def _env_options(way: Way, own: Sequence[FieldText]) -> None:
    texts = [w.text for w in own]
    if any(t in ("-i", "-", "--ignore-environment") for t in texts):
        end_environment(way, "env -i")
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
            value = word.behind(6)
        elif re.match(r"-e[A-Za-z_]", word.text):
            value = word.behind(2)
        if value is None:
            continue
        name, equals, _ = value.text.partition("=")
        if equals:
            given[name] = value.behind(len(name) + 1)
        elif name in outer:
            given[name] = outer[name]
    return given
