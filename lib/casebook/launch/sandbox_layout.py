"""What stands where in the sandbox: recorders for commands, folders and sinks the script turns out to want."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_PATH = re.compile(r"^/[\w./+@:,=~-]+$")

_MISSING_COMMAND = re.compile(r"(?m)^.*?: line \d+: (.+?): command not found$")

_MISSING_FILE = re.compile(
    r"(?m)^.*?: line \d+: (?:cd: |\.: |source: )?(.+?): No such file or directory$"
)

_CD = re.compile(r"(?m)^.*?: line \d+: cd: (.+?): No such file or directory$")

_READ_ONLY = re.compile(r"(?m)^.*?: line \d+: (.+?): (?:Read-only file system|Permission denied)$")

_SAFE_NAME = re.compile(r"[\w.+@-]+")

USUAL = (
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

_CLOSED = ("/.casebook", "/proc", "/dev", "/etc", "/root", "/lib")

HOME = "/home/user"
"""The home of the sandbox's own user; no path of this machine."""

LINKS = {
    "/usr/local/bin": "/bin",
    "/usr/bin": "/bin",
    "/usr/sbin": "/bin",
    "/sbin": "/bin",
    "/tmp": "/scratch",
    "/var/tmp": "/scratch",
    HOME: "/scratch",
}
"""Folders of the sandbox that are links to another: nothing can be mounted below a link."""


def place(layout: dict[str, str], name: str) -> None:
    """Decide where a command's recorder stands: by its path, or in ``/bin``."""
    if "/" in name:
        path = _inside(name if name.startswith("/") else f"/scratch/{name}")
        if _PATH.match(path) and not path.startswith(("/.casebook", "/proc", "/dev", "/lib")):
            layout.setdefault(path, "command")
    elif _SAFE_NAME.fullmatch(name) and name not in (".", ".."):
        layout.setdefault(f"/bin/{name}", "command")


def grown(layout: dict[str, str], complaints: str) -> dict[str, str]:
    """The layout with what bash missed."""
    found = dict(layout)
    folders = {m[1] for m in _CD.finditer(complaints)}
    for match in _MISSING_COMMAND.finditer(complaints):
        if "/" not in match[1]:
            place(found, match[1])
    for match in _MISSING_FILE.finditer(complaints):
        for path in _places(match[1], layout):
            if not _PATH.match(path) or path.startswith(_CLOSED):
                continue
            if match[1] in folders:
                found.setdefault(path, "folder")
            else:
                place(found, path)
    for match in _READ_ONLY.finditer(complaints):
        for path in _places(match[1], layout):
            if _PATH.match(path) and not path.startswith((*_CLOSED, "/bin", "/usr")):
                found[path] = "sink"
    return found if len(found) < 400 else layout


def _places(name: str, layout: Mapping[str, str]) -> list[str]:
    """Where a missing file may be looked for: a relative one in every folder the script enters."""
    if name.startswith("/"):
        return [_inside(name)]
    folders = ["/scratch", *(path for path, kind in layout.items() if kind == "folder")]
    return [_inside(f"{folder}/{name}") for folder in folders[:20]]


def _inside(path: str) -> str:
    """A path as it is laid out in the sandbox."""
    path = os.path.normpath(path)
    for link, target in LINKS.items():
        if path.startswith(f"{link}/"):
            return target + path[len(link) :]
    return path
