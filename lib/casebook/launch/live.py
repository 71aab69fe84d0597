"""What a running server says of itself (``/server_info``), and what its process was started with."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casebook.errors import LaunchError
from casebook.launch.model import Launch
from casebook.launch.secrets import Redactor

MAX_ANSWER = 32 * 2**20
_PATHS = ("/server_info", "/get_server_info")


@dataclass(frozen=True)
class LiveServer:
    """A running server's answer."""

    url: str
    """Without a user's name and password."""
    arguments: Mapping[str, Any]
    command: str | None
    """``launch_command``, from 0.5.20 on; its words are joined with blanks, their quotes are lost."""
    version: str | None


def ask(url: str, seconds: float = 10.0, api_key: str | None = None) -> LiveServer:
    """Ask a server for its arguments. Raises LaunchError in one sentence, whatever it answers."""
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise LaunchError("The server's address must look like http://HOST:PORT.")
    shown = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    if parts.password and not api_key:
        headers["Authorization"] = f"Bearer {parts.password}"
    problem = ""
    for path in _PATHS:
        try:
            request = urllib.request.Request(
                f"{shown}{parts.path.rstrip('/')}{path}", headers=headers
            )
            with _OPENER.open(request, timeout=seconds) as answer:
                data = answer.read(MAX_ANSWER + 1)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise LaunchError(
                    f"{shown} asks for an API key (HTTP {error.code}); give it with --api-key-env."
                ) from None
            problem = f"{shown} answers HTTP {error.code} to {path}; it is no SGLang server, or not ready."
            continue
        except (OSError, ValueError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", error)
            raise LaunchError(
                f"{shown} does not answer: {str(reason) or type(error).__name__}."
            ) from None
        except Exception as error:  # http.client raises what it finds in a broken answer
            raise LaunchError(f"{shown} does not speak HTTP ({type(error).__name__}).") from None
        return _read(shown, data)
    raise LaunchError(problem)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could carry the key to another host."""

    def redirect_request(self, *_args: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


def _read(shown: str, data: bytes) -> LiveServer:
    if len(data) > MAX_ANSWER:
        raise LaunchError(f"{shown} answers with more than {MAX_ANSWER // 2**20} MiB.")
    try:
        found = json.loads(data)
    except ValueError:
        what = (
            "an HTML page"
            if data.lstrip()[:1] == b"<"
            else "nothing"
            if not data.strip()
            else "no JSON"
        )
        raise LaunchError(f"{shown} answers with {what}; is it an SGLang server?") from None
    if not isinstance(found, dict) or "model_path" not in found:
        raise LaunchError(
            f"{shown} answers, but names no server arguments; is it an SGLang server?"
        )
    clean = Redactor(()).value(found)
    command = clean.pop("launch_command", None)
    version = clean.pop("version", None)
    return LiveServer(
        shown,
        {
            k: v
            for k, v in clean.items()
            if k not in ("internal_states", "frontend", "startup_time")
        },
        " ".join(Redactor(()).words(str(command).split(" "))) if command else None,
        str(version) if version else None,
    )


def read_process(pid: int, root: Path = Path("/proc")) -> Launch:
    """The launch of a running process, from its ``cmdline`` and ``environ``.

    Raises LaunchError if it is gone, belongs to another user, or is no SGLang server.
    """
    folder = root / str(pid)
    try:
        words = (folder / "cmdline").read_bytes()
    except FileNotFoundError:
        raise LaunchError(f"There is no process {pid}.") from None
    except OSError as error:
        raise LaunchError(f"Process {pid} cannot be read: {error.strerror or error}.") from error
    if not words:
        raise LaunchError(f"Process {pid} has no command line: it has ended, or is the kernel's.")
    launch = Launch.from_words([os.fsdecode(w) for w in words.rstrip(b"\0").split(b"\0")])
    try:
        pairs = [
            os.fsdecode(p).partition("=")
            for p in (folder / "environ").read_bytes().split(b"\0")
            if p
        ]
    except OSError:
        return launch  # another user's environment stays closed; the words are what counts
    return Launch(launch.argv, {name: value for name, _, value in pairs}, launch.entry)
