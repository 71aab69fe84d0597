"""Try the walls of the sandbox from inside, for the tests of it."""

from __future__ import annotations

import ctypes
import importlib
import os
import socket
import sys
from collections.abc import Callable
from typing import Any


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Which modules can be imported here and from where, and which of some acts are refused.

    ``modules`` are names, ``write`` is a path, ``connect`` a ``[host, port]``; each act is tried
    with Python's own means and with the C library's, which no audit hook sees.
    """
    acts: dict[str, Callable[[], Any]] = {}
    if "write" in request:
        path = request["write"]
        acts["write"] = lambda: open(path, "w").close()
        acts["write by libc"] = lambda: _check(
            ctypes.CDLL(None).open(os.fsencode(path), os.O_WRONLY | os.O_CREAT, 0o600)
        )
    if "connect" in request:
        address = tuple(request["connect"])
        acts["connect"] = lambda: socket.create_connection(address, 5).close()
        acts["connect by libc"] = lambda: _connect_by_libc(address)
        acts["send a datagram"] = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(
            b"x", address
        )
        acts["look up"] = lambda: socket.getaddrinfo("example.org", 80)
    return {
        "outcome": {"kind": "probed"},
        "modules": {name: _origin(name) for name in request.get("modules", ())},
        "refused": {name: _refusal(act) for name, act in acts.items()},
        "path": sys.path,
        "environment": dict(os.environ),
        "hash": hash("casebook"),
    }


def _origin(name: str) -> str | None:
    try:
        return getattr(importlib.import_module(name), "__file__", None) or "built in"
    except ImportError:
        return None


def _refusal(act: Callable[[], Any]) -> str | None:
    try:
        act()
    except OSError as error:
        return str(error)
    return None


def _check(result: int) -> None:
    if result < 0:
        raise OSError("the C library was refused")


def _connect_by_libc(address: tuple[str, int]) -> None:
    packed = socket.AF_INET.to_bytes(2, sys.byteorder) + address[1].to_bytes(2, "big")
    packed += socket.inet_aton(address[0]) + bytes(8)
    with socket.socket() as connection:
        _check(ctypes.CDLL(None).connect(connection.fileno(), packed, len(packed)))
