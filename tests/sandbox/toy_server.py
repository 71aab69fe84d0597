"""A fork server with launches that misbehave in every way we could think of. Run as a script."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from casebook_inside import forks

Request = dict[str, Any]


def echo(request: Request) -> Any:
    print("said", request.get("say", ""))
    return {"outcome": {"kind": "ok"}, "got": request.get("value")}


def hang(request: Request) -> Any:
    if "fifo" in request:
        Path(request["fifo"]).write_text(str(os.getpid()), "utf-8")
    while True:
        signal.pause()


def deaf(_: Request) -> Any:
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
            signal.signal(number, signal.SIG_IGN)
    hang({})


def stop(_: Request) -> Any:
    os.kill(os.getpid(), signal.SIGSTOP)


def die(request: Request) -> Any:
    with contextlib.suppress(OSError):  # that of SIGKILL cannot be set
        signal.signal(request["signal"], signal.SIG_DFL)
    os.kill(os.getpid(), request["signal"])
    hang({})


def crash(_: Request) -> Any:
    ctypes.string_at(0)


def leave(request: Request) -> Any:
    os._exit(request["code"])


def system_exit(_: Request) -> Any:
    sys.exit(3)


def memory(_: Request) -> Any:
    try:
        hoard = [bytearray(1 << 28) for _ in range(64)]
    except MemoryError:
        return {"outcome": {"kind": "MemoryError"}}
    return {"outcome": {"kind": str(len(hoard))}}


def flood(_: Request) -> Any:
    try:
        for _ in range(100):
            print("x" * (1 << 20))
    except OSError as error:
        return {"outcome": {"kind": "OSError"}, "message": str(error)}
    return {"outcome": {"kind": "printed"}}


def many_files(_: Request) -> Any:
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(50)]
    return {"outcome": {"kind": "ok"}, "count": len(kept)}


def child_holds_the_channel(request: Request) -> Any:
    if os.fork() == 0:
        hang({})
    if request.get("then") == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"outcome": {"kind": "ok"}}


def daemon(_: Request) -> Any:
    """A grandchild in a session of its own, whose parent is gone."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        grandchild = os.fork()
        if grandchild == 0:
            hang({})
        os.write(writing, str(grandchild).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    return {"outcome": {"kind": "ok"}, "pid": int(os.read(reading, 20))}


def close_everything(_: Request) -> Any:
    os.closerange(0, 256)
    hang({})


def replace_itself(_: Request) -> Any:
    os.execv("/bin/sh", ["sh", "-c", "exit 7"])


def close_output(_: Request) -> Any:
    sys.stdout.close()
    sys.stderr.close()
    return {"outcome": {"kind": "ok"}}


def not_json(_: Request) -> Any:
    return {"outcome": {"kind": "ok"}, "object": object()}


def half_an_answer(request: Request) -> Any:
    """Writes to the channel itself, as no launch should."""
    for name in _open_files():
        try:
            channel = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        channel.sendall(request["text"].encode())
    os._exit(0)


def environment(request: Request) -> Any:
    os.environ["LEFT_BEHIND"] = "1"
    os.chdir("/")
    names = ("GIVEN", "LEFT_BEHIND_BEFORE")
    return {
        "outcome": {"kind": "ok"},
        "env": {name: os.environ.get(name) for name in names},
        "cwd": str(Path.cwd()),
        "request": request.get("env"),
    }


def see(_: Request) -> Any:
    """What a launch finds: its environment, its open files, its working folder."""
    return {
        "outcome": {"kind": "ok"},
        "env": dict(os.environ),
        "cwd": str(Path.cwd()),
        "files": len(_open_files()),
        "sockets": sum("socket:" in _link(name) for name in _open_files()),
    }


def _open_files() -> list[str]:
    return [path.name for path in Path("/dev/fd").iterdir()]


def _link(name: str) -> str:
    try:
        return str(Path("/proc/self/fd", name).readlink())
    except OSError:
        return ""


HANDLERS = {
    function.__name__: function
    for function in (
        *(echo, hang, deaf, stop, die, crash, leave, system_exit, memory, flood, many_files),
        *(child_holds_the_channel, daemon, close_everything, replace_itself, close_output),
        *(not_json, half_an_answer, environment, see),
    )
}


def rehearse() -> None:
    if os.environ.get("BAD_REHEARSAL"):
        raise RuntimeError("a rehearsal that fails")


if __name__ == "__main__":
    channel = socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(int(sys.argv[1]), False)
    print("printed before any fork")
    forks.ForkServer(channel, HANDLERS, rehearse).serve()
