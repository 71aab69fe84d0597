"""Start bash in bubblewrap with a recorder in place of every command, and end it at a limit."""

from __future__ import annotations

import fcntl
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from casebook.launch.sandbox_calls import Call, calls_in
from casebook.launch.sandbox_layout import HOME, LINKS

RECORDER = Path(__file__).with_name("recorder.sh")

NOBODY = 65534


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


@dataclass
class Run:
    calls: tuple[Call, ...]
    status: int
    stopped: str
    text: str
    seconds: float


def start(
    script: str,
    environment: dict[str, str],
    arguments: Sequence[str],
    layout: Mapping[str, str],
    limits: ShellLimits,
    files: Mapping[str, str] | None = None,
) -> Run:
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
        return Run(calls_in(records), process.returncode, stopped, text, time.monotonic() - begun)
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
        *(word for link, target in LINKS.items() for word in ("--symlink", target, link)),
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
        "HOME": HOME,
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
