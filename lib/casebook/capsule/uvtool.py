"""Running uv, and saying in one sentence why it failed.

uv is found through its Python package, never through PATH, so that the lab uses the version it was
installed with. Its messages are made for a terminal; :func:`explain` turns the ones a user can do
something about into errors of ours, and hands on the last lines of any other.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from casebook.errors import CapsuleError, IndexUnreachableError

_UNREACHABLE = re.compile(
    r"failed to fetch|error sending request|tcp connect error|connection refused|dns error"
    r"|operation timed out|connection reset|network connectivity is disabled"
    r"|failed to download|request failed after|http status (server|client) error",
    re.IGNORECASE,
)
_DISK_FULL = re.compile(r"no space left on device|os error 28|disk quota exceeded", re.IGNORECASE)
_HASH = re.compile(r"hash mismatch", re.IGNORECASE)
_ABSENT = re.compile(
    r"no solution found|not found in the package registry|no wheels? with a matching|no usable wheels",
    re.IGNORECASE,
)
_SECRET = re.compile(r"(?<=://)[^/@\s]+@")

# Settings of the user's own projects that would change what a lock means.
_NOT_PASSED_ON = frozenset(
    [
        "UV_CONSTRAINT",
        "UV_OVERRIDE",
        "UV_BUILD_CONSTRAINT",
        "UV_EXCLUDE",
        "UV_EXCLUDE_NEWER",
        "UV_PRERELEASE",
        "UV_RESOLUTION",
        "UV_NO_BINARY",
        "UV_ONLY_BINARY",
        "UV_NO_BUILD",
        "UV_NO_BUILD_ISOLATION",
        "UV_REQUIRE_HASHES",
        "UV_NO_VERIFY_HASHES",
        "UV_FORK_STRATEGY",
        "UV_COMPILE_BYTECODE",
        "UV_LINK_MODE",
        "UV_PYTHON",
        "UV_TARGET",
        "UV_WORKING_DIR",
        "UV_WORKING_DIRECTORY",
        "UV_PROJECT",
        "VIRTUAL_ENV",
    ]
)


def find_uv() -> Path:
    """uv's executable, from the ``uv`` Python package."""
    try:
        import uv

        return Path(uv.find_uv_bin())
    except (ImportError, FileNotFoundError) as error:
        raise CapsuleError(
            "The uv package, which builds capsules, is not installed in this Python environment; "
            "install it with `pip install uv`."
        ) from error


def run_uv(
    args: Sequence[str],
    *,
    what: str,
    cwd: Path,
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Run uv in ``cwd``, pass each line it prints to ``on_line``, and raise if it fails.

    ``what`` completes the sentence "uv failed while ...".
    """
    env = {k: v for k, v in os.environ.items() if k not in _NOT_PASSED_ON}
    command = [str(find_uv()), "--no-progress", "--color", "never", *args]
    tail: deque[str] = deque(maxlen=40)
    try:
        started = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise CapsuleError(
            f"uv could not be started while {what} ({error}); install it again with "
            "`pip install --force-reinstall uv`."
        ) from error
    with started as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                tail.append(line.rstrip())
                if on_line is not None:
                    on_line(line.rstrip())
        except BaseException:
            # An interrupted build must not leave uv writing into a folder that is being removed.
            process.kill()
            raise
    if process.returncode != 0:
        raise explain(list(tail), process.returncode, what)


def explain(lines: Sequence[str], returncode: int, what: str) -> CapsuleError:
    """The error to raise for a run of uv that printed ``lines`` and ended with ``returncode``."""
    lines = [_SECRET.sub("", line) for line in lines if line.strip()]
    text = "\n".join(lines)
    last = " | ".join(line.strip() for line in lines[-6:]) or "it printed nothing"
    if _DISK_FULL.search(text):
        return CapsuleError(
            f"The disk filled up while {what}; free some space, or set CASEBOOK_CACHE (and "
            "UV_CACHE_DIR) to a folder on a larger disk."
        )
    if _HASH.search(text):
        return CapsuleError(
            f"A downloaded file does not have the hash the lock demands while {what}, so it was "
            "refused: the index or a mirror serves another file under that name; use another index "
            f"(UV_DEFAULT_INDEX), or clear uv's cache. uv said: {last}"
        )
    # Asked before "absent", as uv reports an index that is switched off as "no solution" too.
    if _UNREACHABLE.search(text):
        certificate = (
            " Its certificate is not trusted: set SSL_CERT_FILE to your network's own certificates."
            if "certificate" in text.casefold()
            else ""
        )
        return IndexUnreachableError(
            f"The package index did not answer while {what}; check the network, or set "
            "UV_DEFAULT_INDEX to a mirror you can reach, or copy a capsule cache from another "
            "machine (CASEBOOK_CACHE), or use a Python that already has SGLang "
            f"(casebook.capsule.live).{certificate} uv said: {last}"
        )
    if _ABSENT.search(text):
        return CapsuleError(
            f"The package index lacks a file the lock names, while {what}: a mirror may be "
            "incomplete, or there is no wheel for this platform; try another index "
            f"(UV_DEFAULT_INDEX). uv said: {last}"
        )
    return CapsuleError(f"uv failed (exit code {returncode}) while {what}: {last}")
