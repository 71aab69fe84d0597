"""Live mode: a Python that already has SGLang and its GPU packages, asked where it keeps them.

Nothing is installed, stubbed or simulated. The interpreter is run once, for a moment, and SGLang
is not imported: that takes many seconds and may touch the GPUs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

from casebook.capsule.model import Capsule
from casebook.errors import CapsuleError

PROBE_SECONDS = 60.0  # an interpreter on a busy network file system starts slowly
OLDEST = (3, 10)
"""No release the lab knows runs on an older Python."""

_MARK = "casebook-live:"
# Written for any Python, so that one too old for SGLang is told apart from no Python at all.
_PROBE = f"""
import json, sys
found = {{"python": list(sys.version_info[:3]), "folder": None, "version": None}}
try:
    import importlib.util
    spec = importlib.util.find_spec("sglang")
    if spec is not None and spec.origin not in (None, "namespace"):
        found["folder"] = list(spec.submodule_search_locations or [None])[0]
except Exception as error:
    found["error"] = "%s: %s" % (type(error).__name__, error)
try:
    import importlib.metadata
    found["version"] = importlib.metadata.version("sglang")
except Exception:
    pass
print({_MARK!r} + json.dumps(found))
"""
# A source tree on PYTHONPATH has no metadata; SGLang writes its version into one of these.
_VERSION_FILES = ("_version.py", "version.py", "__init__.py")
_VERSION = re.compile(
    r"""^(?:__version__|version)\b[^=\n]*=(?:[^=\n]*=)?\s*["']([^"']+)["']""", re.M
)


def live(python: Path | str, *, seconds: float = PROBE_SECONDS) -> Capsule:
    """The SGLang that the interpreter ``python`` has, such as ``/opt/sglang/bin/python``.

    Raises CapsuleError if ``python`` is no Python that answers within ``seconds``, or has no SGLang.
    """
    # Made absolute without following links: a virtual environment is known by its link's place.
    path = Path(python).expanduser().absolute()
    _check_file(path)
    found = _probe(path, seconds)
    number = ".".join(map(str, found["python"]))
    if tuple(found["python"]) < OLDEST:
        raise CapsuleError(
            f"{path} is Python {number}, which is too old for SGLang; name the Python that the "
            "server runs with."
        )
    if found.get("error"):
        raise CapsuleError(
            f"{path} could not look for SGLang ({found['error']}); see that this Python works."
        )
    if not found["folder"]:
        raise CapsuleError(
            f"{path} (Python {number}) has no sglang package; name the Python that the server "
            "runs with, or install requirements-live.txt there."
        )
    package = Path(found["folder"])
    version = found["version"] or _version_in(package)
    if not version:
        raise CapsuleError(
            f"The sglang package that {path} has, {package}, does not say its version; install it "
            "with pip, so that it has metadata."
        )
    return Capsule(release=version, site=package.parent, python=path, lock_sha256="", live=True)


def _check_file(path: Path) -> None:
    if path.is_dir():
        inside = path / "bin" / "python"
        hint = f"; did you mean {inside}?" if inside.exists() else "; name the interpreter in it."
        raise CapsuleError(f"{path} is a folder and no Python{hint}")
    if not path.exists():
        what = "is a link to nothing" if path.is_symlink() else "does not exist"
        raise CapsuleError(
            f"{path} {what}; name the Python that has SGLang, such as /opt/sglang/bin/python."
        )
    if not os.access(path, os.X_OK):
        raise CapsuleError(f"{path} is not executable; name the Python that has SGLang.")


def _probe(path: Path, seconds: float) -> dict[str, Any]:
    """What the interpreter says of itself and of sglang."""
    # Files and not pipes: whoever inherits a pipe could keep us waiting after the interpreter died.
    # The folder is empty, since ``python -c`` puts the working directory on the search path.
    with (
        tempfile.TemporaryDirectory(prefix="casebook-live-") as scratch,
        (Path(scratch) / "out").open("w+b") as out,
        (Path(scratch) / "err").open("w+b") as err,
    ):
        (empty := Path(scratch) / "empty").mkdir()
        try:
            process = subprocess.Popen(
                [str(path), "-c", _PROBE],
                cwd=empty,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            raise CapsuleError(
                f"{path} cannot be run as a Python ({error.strerror or error}); name the Python "
                "that has SGLang."
            ) from error
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired as error:
            raise CapsuleError(
                f"{path} did not answer within {seconds:g} s and was stopped; see that it is "
                'a Python which starts: `python -c "print(1)"`.'
            ) from error
        finally:
            _end(process)
        answer, complaint = _text(out), _text(err)
    for line in reversed(answer.splitlines()):
        if line.startswith(_MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return found
    last = complaint.strip().splitlines()[-1:] or ["it printed no error"]
    raise CapsuleError(
        f"{path} did not answer as a Python does (exit code {code}: {last[0][:200]}); name the "
        "Python that has SGLang."
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop the interpreter, if it still runs, and all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(1 << 20).decode("utf-8", "replace")


def _version_in(package: Path) -> str | None:
    for name in _VERSION_FILES:
        try:
            text = (package / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if found := _VERSION.search(text):
            return found[1]
    return None
