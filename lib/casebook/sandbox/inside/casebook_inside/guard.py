"""The interpreter's part of the sandbox: an audit hook that refuses what a launch must not do.

A launch may name a bucket, a hub, a folder or a checkpoint with code of its own. Resolving it must
not go to the network, write outside the scratch folder, or run that code. The hook works on every
platform and says in plain words what it refused; ``confine`` adds the kernel's rules below it.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
import sysconfig
from collections.abc import Callable
from typing import Any

from casebook_inside.confine import DEVICES

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Event -> positions of (path, directory handle) pairs that it would change.
_CHANGES: dict[str, tuple[tuple[int, int | None], ...]] = {
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.link": ((1, 3),),
    "os.mkdir": ((0, 2),),
    "os.remove": ((0, 1),),
    "os.removexattr": ((0, None),),
    "os.rename": ((0, 2), (1, 3)),
    "os.rmdir": ((0, 1),),
    "os.setxattr": ((0, None),),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.utime": ((0, 3),),
}
_PROGRAM_FOLDERS = ("/bin", "/sbin", "/usr", "/opt", "/nix/store")
_LOCAL_NAMES = frozenset({"", "localhost"})
_session: int | None = None  # set in a fork: the only processes that it may signal


class Guard:
    """``code`` are the folders that code may come from (beside Python's own), ``writable`` those that
    may change; programs may be started from ``PATH`` as it stands now and from the system's folders.
    """

    def __init__(self, code: list[str], writable: list[str]) -> None:
        library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
        programs = [os.path.dirname(sys.executable), *os.get_exec_path(), *_PROGRAM_FOLDERS]
        self._code = _as_prefixes([*code, *library, os.path.dirname(os.__file__)])
        self._writable = _as_prefixes([*writable, *DEVICES])
        self._programs = _as_prefixes([folder for folder in programs if os.path.isabs(folder)])
        self._handlers: dict[str, Callable[[tuple[Any, ...]], None]] = {
            "open": self._open,
            "sqlite3.connect": lambda args: self._open_database(args[0]),
            "exec": lambda args: self._run_code(getattr(args[0], "co_filename", None)),
            "import": lambda args: self._run_code(args[1]),
            "subprocess.Popen": lambda args: self._start(args[0]),
            "os.exec": lambda args: self._start(args[0]),
            "os.posix_spawn": lambda args: self._start(args[0]),
            "os.kill": lambda args: _signal(args[0]),
            "os.killpg": lambda args: _signal(args[0]),
            "socket.connect": lambda args: self._connect(args[0], args[1]),
            "socket.sendto": lambda args: self._connect(args[0], args[1]),
            "socket.sendmsg": lambda args: self._connect(args[0], args[1]),
            "socket.getaddrinfo": lambda args: _look_up(args[0]),
            "socket.gethostbyname": lambda args: _look_up(args[0]),
            "socket.gethostbyaddr": lambda args: _look_up(args[0]),
            "socket.getnameinfo": lambda args: _look_up(args[0][0]),
        }
        for event, paths in _CHANGES.items():
            self._handlers[event] = self._change_at(paths)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        handler = self._handlers.get(event)
        if handler is not None:
            handler(args)

    def _open(self, args: tuple[Any, ...]) -> None:
        if isinstance(args[2], int) and args[2] & _WRITING:
            self._change(args[0], None)

    def _open_database(self, name: Any) -> None:
        if isinstance(name, str):
            if name in ("", ":memory:"):
                return
            name = name.removeprefix("file:").partition("?")[0]
        self._change(name, None)

    def _change_at(
        self, positions: tuple[tuple[int, int | None], ...]
    ) -> Callable[[tuple[Any, ...]], None]:
        def handler(args: tuple[Any, ...]) -> None:
            for path, folder in positions:
                self._change(args[path], args[folder] if folder is not None else None)

        return handler

    def _change(self, path: Any, folder: Any) -> None:
        if isinstance(path, int):
            return  # an open file: whoever opened it was asked
        try:
            name = os.fsdecode(path)
        except TypeError:
            return
        if not os.path.isabs(name) and isinstance(folder, int) and folder >= 0:
            try:
                name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
            except OSError:
                return  # no /proc: whoever opened that folder for us can no longer be asked
        real = _real(name)
        if not (real.startswith(self._writable) or self._is_bytecode(real)):
            raise PermissionError(
                f"casebook: the sandbox writes to its scratch folder only (not to {name!r})"
            )

    def _is_bytecode(self, real: str) -> bool:
        """Whether it is what Python itself keeps of a module that it may import."""
        cached = "/__pycache__/" in real and ".pyc" in os.path.basename(real)
        return (cached or real.endswith("/__pycache__/")) and real.startswith(self._code)

    def _run_code(self, filename: Any) -> None:
        if isinstance(filename, str) and os.path.isabs(filename):
            # As written first: asking the file system costs more, and an import asks often.
            if filename.startswith(self._code) or _real(filename).startswith(self._code):
                return
            raise PermissionError(
                f"casebook: the sandbox runs no code from a checkpoint or other folder ({filename})"
            )

    def _start(self, program: Any) -> None:
        name = os.fsdecode(program) if program is not None else ""
        if "/" in name and not os.path.abspath(name).startswith(self._programs):
            raise PermissionError(f"casebook: the sandbox does not start {name!r}")

    def _connect(self, connection: Any, address: Any) -> None:
        if address is None:
            return  # sent over a connection that was allowed, or that is a pair
        if connection.family != getattr(socket, "AF_UNIX", None):
            raise OSError(f"casebook: the sandbox has no network (connect to {address!r})")
        name = os.fsdecode(address) if isinstance(address, (str, bytes)) else ""
        # A container engine, an agent with keys; a name with a NUL is in no folder at all.
        if "\0" in name or not _real(name).startswith(self._writable):
            raise OSError(f"casebook: the sandbox has no sockets of others (connect to {name!r})")


def install(code: list[str], writable: list[str]) -> None:
    """Guard this process and its forks from now on; there is no way back."""
    sys.addaudithook(Guard(code, writable))


def enter_launch() -> None:
    """In a fork that is its own session: refuse signals to anyone outside it."""
    global _session
    _session = os.getsid(0)


def _signal(pid: int) -> None:
    if _session is None or pid == 0:
        return
    with contextlib.suppress(ProcessLookupError):
        if pid < 0 or os.getsid(pid) != _session:
            raise PermissionError(f"casebook: the sandbox sends no signal to process {pid}")


def _look_up(host: Any) -> None:
    if host is None:
        return
    name = host.decode("utf-8", "replace") if isinstance(host, bytes) else str(host)
    if name.lower() in _LOCAL_NAMES:
        return
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        # What a machine without a name server says, so that SGLang goes the way it goes there.
        raise socket.gaierror(
            socket.EAI_NONAME, f"casebook: the sandbox has no network (look-up of {name!r})"
        ) from None


def _real(name: str) -> str:
    return os.path.realpath(name) + "/"


def _as_prefixes(folders: list[str]) -> tuple[str, ...]:
    """Each folder as written and as it really is, ending in a slash so that a prefix is a parent."""
    found = dict.fromkeys(f"{folder.rstrip('/')}/" for folder in folders)
    found.update(dict.fromkeys(_real(folder) for folder in folders))
    return tuple(found)
