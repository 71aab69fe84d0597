"""A small release, and a uv that installs it without an index: for tests of how capsules are kept."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

VERSION = "1.2.3"

_RELEASES = f"""
schema = 1
source = "made up for a test"

[[release]]
version = "{VERSION}"
uploaded = 2026-01-01
requires_python = ">=3.10"
wheel = "any"
exclude_newer = 2026-01-06
"""

# Installs what the requirements name. FAKE_UV_MODE: "" for that; "stop" to wait in the middle of it
# for SIGUSR1; "fail" to print FAKE_UV_SAYS and exit 2; "short" to leave out a file of SGLang's.
_UV = r"""
import base64, hashlib, os, re, signal, sys
from pathlib import Path

with open(os.environ["FAKE_UV_LOG"], "a") as log:
    print(*sys.argv[1:], file=log)
target = Path(sys.argv[sys.argv.index("--target") + 1])
requirements = Path(sys.argv[sys.argv.index("-r") + 1]).read_text()
mode = os.environ.get("FAKE_UV_MODE", "")

def install(name, version):
    files = {f"{name}/__init__.py": "", f"{name}/srt/server_args.py": "page_size = 1\n" * 9}
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
        lines.append(f"{path},sha256={digest.decode().rstrip('=')},{len(text)}\n")
        if mode == "short" and path == "sglang/srt/server_args.py":
            continue
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text)
    info = target / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(lines) + f"{info.name}/RECORD,,\n")

pinned = re.findall(r"^(\S+)==(\S+)", requirements, re.M)
for name, version in pinned:
    if mode == "stop" and name == "sglang":
        (target / "sglang").mkdir()
        (target / "sglang" / "half.py").write_text("half")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        print("pid", os.getpid(), flush=True)
        signal.sigwait([signal.SIGUSR1])
        (target / "sglang" / "half.py").unlink()
    if mode == "fail":
        sys.exit(print(os.environ["FAKE_UV_SAYS"]) or 2)
    install(name, version)
print(f"Prepared {len(pinned)} packages in 1ms")
print(f"Installed {len(pinned)} packages in 1ms")
"""

# A process that asks for the capsule and tells what it is doing.
_ASK = """
import sys
from pathlib import Path
from casebook.capsule import progress, uvtool

uv = sys.argv[2]
if uv:
    uvtool.find_uv = lambda: Path(uv)

def tell(self, line):
    print(line, flush=True)

progress.Progress.step = tell
progress.Progress.uv_line = tell
from casebook.capsule import ensure
print("folder", ensure(sys.argv[1]).folder, flush=True)
"""


@dataclass(frozen=True)
class Lab:
    """A data folder with one release, a cache, and a fake uv; ``env`` makes casebook use them."""

    root: Path

    @property
    def uv(self) -> Path:
        return self.root / "uv"

    @property
    def store(self) -> Path:
        return self.root / "cache" / "capsules"

    @property
    def lock(self) -> Path:
        return self.root / "data" / "capsules" / f"{VERSION}.txt"

    @property
    def env(self) -> dict[str, str]:
        return {
            "CASEBOOK_DATA": str(self.root / "data"),
            "CASEBOOK_CACHE": str(self.root / "cache"),
            "FAKE_UV_LOG": str(self.root / "uv.log"),
        }

    def uv_runs(self) -> int:
        log = self.root / "uv.log"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def unfinished(self) -> list[Path]:
        return sorted(self.store.glob(".unfinished-*"))

    def capsules(self) -> list[Path]:
        return sorted(p for p in self.store.glob("*") if not p.name.startswith("."))


def make_lab(root: Path) -> Lab:
    """Write the release, its lock and the fake uv under ``root``."""
    lab = Lab(root)
    lab.lock.parent.mkdir(parents=True)
    (root / "data" / "releases.toml").write_text(_RELEASES)
    write_lock_for(lab, "1.0")
    lab.uv.write_text(f"#!{sys.executable} -IS\n{_UV}")
    lab.uv.chmod(0o755)
    return lab


def write_lock_for(lab: Lab, dependency: str) -> None:
    """Write the lock with another version of the one dependency, and so with another digest."""
    digest = hashlib.sha256(dependency.encode()).hexdigest()
    lab.lock.write_text(
        textwrap.dedent(f"""\
        # a lock for a test
        dep=={dependency} \\
            --hash=sha256:{digest}
        sglang=={VERSION} \\
            --hash=sha256:{digest}
        """)
    )


def ask(
    version: str, env: Mapping[str, str], uv: Path | None = None, **more: str
) -> subprocess.Popen[str]:
    """Start a process that ensures ``version`` and prints what it is doing, then ``folder PATH``."""
    return subprocess.Popen(
        [sys.executable, "-c", _ASK, version, str(uv or "")],
        env={**os.environ, **env, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], start: str) -> str:
    """The first line the process prints that starts with ``start``; fails if it ends without."""
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        if line.startswith(start):
            return line.rstrip("\n")
        seen.append(line)
    raise AssertionError(f"ended ({process.wait()}) without {start!r}: {''.join(seen)}")


def kill(process: subprocess.Popen[str]) -> None:
    """Kill with SIGKILL, as a person or the kernel would, and collect the process."""
    process.send_signal(signal.SIGKILL)
    with process:
        process.wait()
