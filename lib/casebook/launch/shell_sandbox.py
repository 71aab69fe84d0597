"""Run a script's shell where nothing else can run, and record how each command would be called.

The sandbox is bubblewrap's: no network, no file of this machine but bash and its libraries, nothing
writable but a small scratch folder in memory, limits on time, processes, memory and output. In place
of every external command stands a recorder (``recorder.sh``), so ``rm`` is written down and not run.
Which commands those are shows as it runs: bash names what it misses, and the run is repeated with it.
"""

from __future__ import annotations

import fcntl
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from casebook.errors import LaunchError

RECORDER = Path(__file__).with_name("recorder.sh")
NOBODY = 65534
MAX_ROUNDS = 16
_PATH = re.compile(r"^/[\w./+@:,=~-]+$")
_MISSING_COMMAND = re.compile(r"(?m)^.*?: line \d+: (.+?): command not found$")
_MISSING_FILE = re.compile(
    r"(?m)^.*?: line \d+: (?:cd: |\.: |source: )?(.+?): No such file or directory$"
)
_CD = re.compile(r"(?m)^.*?: line \d+: cd: (.+?): No such file or directory$")
_READ_ONLY = re.compile(r"(?m)^.*?: line \d+: (.+?): (?:Read-only file system|Permission denied)$")
_LINE_ERROR = re.compile(r"(?m)^script: line (\d+): (.+)$")
_SAFE_NAME = re.compile(r"[\w.+@-]+")


class SandboxUnavailableError(LaunchError):
    """This machine has no sandbox to run a shell in."""


@dataclass(frozen=True)
class ShellLimits:
    """Limits of one run."""

    seconds: float = 6.0
    processes: int = 96
    memory_bytes: int = 256 * 2**20
    """Address space of one process."""
    scratch_bytes: int = 32 * 2**20
    output_bytes: int = 2**20
    records: int = 2000
    record_bytes: int = 8 * 2**20


@dataclass(frozen=True)
class Call:
    """One command as the shell started it: exact words, exact environment."""

    path: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    stdin: str

    @property
    def name(self) -> str:
        """The command's name without its folder."""
        return self.path.rpartition("/")[2]

    @property
    def words(self) -> tuple[str, ...]:
        """The command's words, its name first."""
        return (self.path, *self.arguments)


@dataclass(frozen=True)
class Recording:
    """What a run showed."""

    calls: tuple[Call, ...]
    status: int
    stopped: str
    """The limit that ended it; empty if it ended by itself."""
    errors: tuple[tuple[int, str], ...]
    """What bash complained about, by line."""
    seconds: float
    rounds: int
    made: tuple[str, ...] = field(default=())
    """Paths that were made for the script: commands, folders, files to write."""
    given: frozenset[str] = frozenset()
    """Those of them that were there from the start."""


@lru_cache(maxsize=1)
def unavailable() -> str:
    """Why no sandbox can be had on this machine; empty if one can."""
    if not sys.platform.startswith("linux"):
        return "bubblewrap exists on Linux only"
    if shutil.which("bwrap") is None:
        return "bubblewrap (`bwrap`) is not installed"
    if shutil.which("bash") is None:
        return "bash is not installed"
    try:
        found = _start("exit 7", {}, (), {}, ShellLimits(seconds=10))
    except (OSError, subprocess.SubprocessError) as error:
        return f"bubblewrap cannot start: {error}"
    if found.status != 7:
        return "bubblewrap cannot make user namespaces here"
    return ""


def record(
    script: str,
    *,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    files: Mapping[str, str] | None = None,
    commands: Iterable[str] = (),
    limits: ShellLimits | None = None,
) -> Recording:
    """Run ``script`` with bash in the sandbox and return every command it would start.

    ``commands`` names commands that are known to occur, which saves repetitions; ``files`` are put
    beside the script. Raises SandboxUnavailableError where there is no sandbox.
    """
    if reason := unavailable():
        raise SandboxUnavailableError(f"The script's shell cannot be run safely here: {reason}.")
    limits = limits or ShellLimits()
    layout: dict[str, str] = {}
    for name in (*_USUAL, *commands):
        _place(layout, name)
    given = frozenset(path for path in layout if path.startswith("/bin/"))
    deadline = time.monotonic() + limits.seconds * 3
    rounds = 0
    while True:
        rounds += 1
        found = _start(
            script, dict(environment or {}), arguments, layout, limits, dict(files or {})
        )
        grown = _grown(layout, found.text)
        if rounds >= MAX_ROUNDS or found.stopped or grown == layout or time.monotonic() > deadline:
            break
        layout = grown
    errors = tuple((int(m[1]), m[2][:200]) for m in _LINE_ERROR.finditer(found.text))[:50]
    made = tuple(sorted(layout))
    return Recording(
        found.calls, found.status, found.stopped, errors, found.seconds, rounds, made, given
    )


_USUAL = (
    "python",
    "python3",
    "sglang",
    "ssh",
    "bash",
    "sh",
    "nohup",
    "env",
    "numactl",
    "taskset",
    "torchrun",
    "docker",
    "cat",
    "tee",
    "sleep",
    "mkdir",
    "rm",
    "dirname",
    "basename",
    "seq",
    "date",
    "hostname",
    "nvidia-smi",
    "grep",
    "sed",
    "awk",
    "curl",
    "tail",
    "head",
    "kill",
    "pkill",
    "sudo",
    "time",
    "timeout",
    "srun",
)


def _place(layout: dict[str, str], name: str) -> None:
    """Decide where a command's recorder stands: by its path, or in ``/bin``."""
    if "/" in name:
        path = _inside(name if name.startswith("/") else f"/scratch/{name}")
        if _PATH.match(path) and not path.startswith(("/.casebook", "/proc", "/dev", "/lib")):
            layout.setdefault(path, "command")
    elif _SAFE_NAME.fullmatch(name) and name not in (".", ".."):
        layout.setdefault(f"/bin/{name}", "command")


def _grown(layout: dict[str, str], complaints: str) -> dict[str, str]:
    """The layout with what bash missed."""
    found = dict(layout)
    folders = {m[1] for m in _CD.finditer(complaints)}
    for match in _MISSING_COMMAND.finditer(complaints):
        if "/" not in match[1]:
            _place(found, match[1])
    for match in _MISSING_FILE.finditer(complaints):
        for path in _places(match[1], layout):
            if not _PATH.match(path) or path.startswith(_CLOSED):
                continue
            if match[1] in folders:
                found.setdefault(path, "folder")
            else:
                _place(found, path)
    for match in _READ_ONLY.finditer(complaints):
        for path in _places(match[1], layout):
            if _PATH.match(path) and not path.startswith((*_CLOSED, "/bin", "/usr")):
                found[path] = "sink"
    return found if len(found) < 400 else layout


_CLOSED = ("/.casebook", "/proc", "/dev", "/etc", "/root", "/lib")


def _places(name: str, layout: Mapping[str, str]) -> list[str]:
    """Where a missing file may be looked for: a relative one in every folder the script enters."""
    if name.startswith("/"):
        return [_inside(name)]
    folders = ["/scratch", *(path for path, kind in layout.items() if kind == "folder")]
    return [_inside(f"{folder}/{name}") for folder in folders[:20]]


_LINKS = {
    "/usr/local/bin": "/bin",
    "/usr/bin": "/bin",
    "/usr/sbin": "/bin",
    "/sbin": "/bin",
    "/tmp": "/scratch",
    "/var/tmp": "/scratch",
    "/home/user": "/scratch",
}
"""Folders of the sandbox that are links to another: nothing can be mounted below a link."""


def _inside(path: str) -> str:
    """A path as it is laid out in the sandbox."""
    path = os.path.normpath(path)
    for link, target in _LINKS.items():
        if path.startswith(f"{link}/"):
            return target + path[len(link) :]
    return path


@dataclass
class _Run:
    calls: tuple[Call, ...]
    status: int
    stopped: str
    text: str
    seconds: float


def _start(
    script: str,
    environment: dict[str, str],
    arguments: Sequence[str],
    layout: Mapping[str, str],
    limits: ShellLimits,
    files: Mapping[str, str] | None = None,
) -> _Run:
    reading, writing = os.pipe()
    high = fcntl.fcntl(writing, fcntl.F_DUPFD, 190)
    os.close(writing)
    folder = Path(tempfile.mkdtemp(prefix="casebook-shell-"))
    try:
        folder.chmod(0o755)
        _write(folder / "script", script.encode("utf-8", "surrogateescape"), 0o644)
        recorder = RECORDER.read_text("utf-8").replace(">&FD", f">&{high}")
        _write(folder / "recorder", recorder.encode(), 0o755)
        for number, (_, text) in enumerate(sorted((files or {}).items())):
            _write(folder / f"file{number}", text.encode("utf-8", "surrogateescape"), 0o755)
        command = _bubblewrap(folder, environment, arguments, layout, limits, files or {})
        as_root = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        begun = time.monotonic()
        process = subprocess.Popen(  # type: ignore[call-overload]
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[high],
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            **as_root,
        )
        os.close(high)
        high = -1
        stopped, records, text = _watch(process, reading, limits)
        if text.startswith("bwrap:") and not stopped:
            stopped = f"the sandbox could not be laid out ({text.splitlines()[0][:120]})"
        return _Run(_calls(records), process.returncode, stopped, text, time.monotonic() - begun)
    finally:
        if high >= 0:
            os.close(high)
        os.close(reading)
        shutil.rmtree(folder, ignore_errors=True)


def _write(path: Path, data: bytes, mode: int) -> None:
    path.write_bytes(data)
    path.chmod(mode)


@lru_cache(maxsize=1)
def _bash_files() -> tuple[str, tuple[str, ...]]:
    """bash and the files it is linked with."""
    bash = os.path.realpath(shutil.which("bash") or "/bin/bash")
    listed = subprocess.run(["ldd", bash], capture_output=True, text=True, check=False).stdout
    libraries = {
        word for line in listed.splitlines() for word in line.split() if word.startswith("/")
    }
    return bash, tuple(sorted(libraries))


def _bubblewrap(
    folder: Path,
    environment: Mapping[str, str],
    arguments: Sequence[str],
    layout: Mapping[str, str],
    limits: ShellLimits,
    files: Mapping[str, str],
) -> list[str]:
    bash, libraries = _bash_files()
    command = [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
        "--clearenv",
        "--hostname",
        "sandbox",
        "--proc",
        "/proc",
        "--dir",
        "/dev",
        "--dev-bind",
        "/dev/null",
        "/dev/null",
        "--symlink",
        "/proc/self/fd",
        "/dev/fd",
        "--symlink",
        "/proc/self/fd/0",
        "/dev/stdin",
        "--symlink",
        "/proc/self/fd/1",
        "/dev/stdout",
        "--symlink",
        "/proc/self/fd/2",
        "/dev/stderr",
        "--size",
        str(limits.scratch_bytes),
        "--tmpfs",
        "/scratch",
        "--dir",
        "/bin",
        *(word for link, target in _LINKS.items() for word in ("--symlink", target, link)),
        "--ro-bind",
        bash,
        "/.casebook/bash",
        "--ro-bind",
        str(folder / "script"),
        "/scratch/script",
    ]
    for library in libraries:
        command += ["--ro-bind", os.path.realpath(library), library]
    for number, (name, _) in enumerate(sorted(files.items())):
        command += [
            "--ro-bind",
            str(folder / f"file{number}"),
            os.path.normpath(f"/scratch/{name}"),
        ]
    # Folders first: a mount hides what stood at its place before.
    for path, kind in sorted(layout.items(), key=lambda item: item[1] != "folder"):
        if kind == "command":
            command += ["--ro-bind", str(folder / "recorder"), path]
        elif kind == "folder":
            command += ["--size", str(limits.scratch_bytes // 8), "--tmpfs", path]
        else:
            command += ["--symlink", "/scratch/.sink", path]
    given = {
        "PATH": "/bin",
        "HOME": "/home/user",
        "USER": "user",
        "TMPDIR": "/scratch",
        "LC_ALL": "C",
        **environment,
    }
    for name, value in given.items():
        if name and "=" not in name and "\0" not in name + value:
            command += ["--setenv", name, value]
    bounds = (
        f"ulimit -c 0 -t {max(1, int(limits.seconds))} -v {limits.memory_bytes // 1024} "
        f"-f {limits.scratch_bytes // 1024} -n 256 -u {limits.processes + _own_processes()}; "
    )
    starter = bounds + _RUN_AND_WAIT
    return [
        *command,
        "--remount-ro",
        "/",
        "--chdir",
        "/scratch",
        "/.casebook/bash",
        "-p",
        "-c",
        starter,
        "starter",
        "script",
        *arguments,
    ]


# When the first process ends, the namespace ends: so wait (two seconds at most) for what the script
# left running, or a server started with `&` would not live to be written down.
_RUN_AND_WAIT = """/.casebook/bash "$@"
status=$?
exec 7<> <(:)
for ((i = 0; i < 40; i++)); do
  left=(/proc/[0-9]*)
  ((${#left[@]} > 2)) || break
  read -t 0.05 -u 7
done
exit $status"""


def _own_processes() -> int:
    """Older kernels count all processes of a user; a fresh namespace begins at none on newer ones."""
    if os.geteuid() == 0:
        return 0
    mine = os.geteuid()
    return sum(
        1 for p in psutil.process_iter(["uids"]) if p.info["uids"] and p.info["uids"].real == mine
    )


def _watch(
    process: subprocess.Popen[bytes], reading: int, limits: ShellLimits
) -> tuple[str, bytes, str]:
    """Read records and complaints until it ends, or until a limit ends it."""
    assert process.stdout is not None and process.stderr is not None
    chunks: dict[str, list[bytes]] = {"records": [], "out": [], "err": []}
    sizes = dict.fromkeys(chunks, 0)
    bounds = {
        "records": limits.record_bytes,
        "out": limits.output_bytes,
        "err": limits.output_bytes,
    }
    stopped = ""
    deadline = time.monotonic() + limits.seconds
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ, "records")
        selector.register(process.stdout, selectors.EVENT_READ, "out")
        selector.register(process.stderr, selectors.EVENT_READ, "err")
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                stopped = f"it ran longer than {limits.seconds:g} seconds"
                break
            for key, _ in selector.select(timeout=min(left, 0.5)):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                sizes[key.data] += len(data)
                if sizes[key.data] <= bounds[key.data]:
                    chunks[key.data].append(data)
                else:
                    stopped = "it wrote more than is read"
            if (
                chunks["records"]
                and sum(c.count(b"\2") for c in chunks["records"][-1:])
                and _many(chunks["records"], limits)
            ):
                stopped = f"it started more than {limits.records} commands"
            if stopped:
                break
    if stopped:
        _kill(process)
    process.stdout.close()
    process.stderr.close()
    process.wait()
    return stopped, b"".join(chunks["records"]), b"".join(chunks["err"]).decode("utf-8", "replace")


def _many(chunks: list[bytes], limits: ShellLimits) -> bool:
    return (
        len(chunks) > limits.records // 8 and sum(c.count(b"\2") for c in chunks) > limits.records
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End bubblewrap; its process namespace, and all in it, ends with it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        process.kill()


_PIECE = re.compile(rb"(\d+) ([01]) (\d+) ([^\x02]*)\x02")


def _calls(data: bytes) -> tuple[Call, ...]:
    """The records, put together again. A script can forge some; it deceives its owner only."""
    open_: dict[bytes, list[bytes]] = {}
    calls: list[Call] = []
    for match in _PIECE.finditer(data):
        parts = open_.setdefault(match[1], [])
        parts.append(match[4])
        if match[2] == b"1":
            continue
        whole = b"".join(open_.pop(match[1])).replace(b"\1n", b"\n").replace(b"\1a", b"\1")
        call = _call(whole)
        if call is not None:
            calls.append(call)
    return tuple(calls)


def _call(data: bytes) -> Call | None:
    head = re.match(rb"(\d+):(\d+):", data)
    if head is None:
        return None
    position, items = head.end(), []
    while match := re.match(rb"(\d+):", data[position : position + 12]):
        first = position + match.end()
        position = first + int(match[1])
        items.append(os.fsdecode(data[first:position]))
    words, variables = int(head[1]), int(head[2])
    if len(items) != words + variables + 1 or not words:
        return None
    env = dict(v.partition("=")[::2] for v in items[words : words + variables])
    for name in ("_", "SHLVL", "PWD", "OLDPWD", "TMPDIR", "USER", "LC_ALL", "HOME", "PATH"):
        env.pop(name, None)
    return Call(items[0], tuple(items[1:words]), env, items[-1])
