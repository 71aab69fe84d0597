"""The kernel's part of the sandbox, where Linux lends it to ordinary users.

Two means, each used if it works here: a network namespace with nothing but a loopback device, and
Landlock rules that leave a few folders writable. Both hold for libraries and subprocesses too,
which the audit hook (``guard``) cannot see. Where neither exists (macOS, an old kernel, a strict
container) the audit hook stands alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterable

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # <linux/sched.h>
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # <linux/sockios.h>, <linux/if.h>

# <linux/landlock.h>
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITE_FILE, _REFER, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_CONNECT_TCP = 1 << 1
_SCOPE_ALL = 0b11  # abstract UNIX sockets and signals
_NO_NEW_PRIVILEGES = 38  # <linux/prctl.h>

# Devices that any program may write to; semaphores of multiprocessing lie in /dev/shm.
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/shm")


def leave_network() -> bool:
    """Move this process, which must have one thread, into a network of its own; says if it did."""
    if sys.platform != "linux":
        return False
    pid = os.fork()
    if pid == 0:  # a trial: half of it would be worse than nothing
        status = 1
        try:
            _unshare_network()
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(pid, 0)[1] != 0:
        return False
    _unshare_network()
    return True


def _unshare_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_NEW_NET) != 0:
        if libc.unshare(_NEW_USER | _NEW_NET) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        # Be who we were: a name that changes would change what SGLang sees.
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as stream:
                stream.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(control, _GET_FLAGS, request))[1]
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _UP))


def landlock_version() -> int:
    """The version of Landlock that the kernel offers; 0 for none."""
    if sys.platform != "linux":
        return 0
    return max(0, ctypes.CDLL(None).syscall(_CREATE_RULESET, None, 0, 1))


def allow_writes(folders: Iterable[str]) -> bool:
    """Leave the calling thread and its later children only ``folders`` to write to; says if it did.

    It also refuses TCP connections and signals to processes outside, as far as the kernel can.
    May be called again to take more away, never to give back.
    """
    version = landlock_version()
    if version == 0:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    rights = _WRITE_FILE | _REMOVE_AND_MAKE
    rights |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    attributes = struct.pack("=Q", rights)
    if version >= 4:
        attributes += struct.pack("=Q", _CONNECT_TCP)
    if version >= 6:
        attributes += struct.pack("=Q", _SCOPE_ALL)
    rules = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for path in (*folders, *DEVICES):
            with contextlib.suppress(OSError):  # a folder that does not exist needs no rule
                _add_rule(libc, rules, path, rights)
        if libc.prctl(_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), 0, 0, 0) != 0:
            return False
        return bool(libc.syscall(_RESTRICT_SELF, rules, 0) == 0)
    finally:
        os.close(rules)


def _add_rule(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not os.path.isdir(path):
            rights &= _WRITE_FILE | _TRUNCATE
        if libc.syscall(_ADD_RULE, rules, 1, struct.pack("=Qi", rights, handle), 0) != 0:
            raise OSError(ctypes.get_errno(), "landlock_add_rule", path)
    finally:
        os.close(handle)
