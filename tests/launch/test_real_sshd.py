"""The text after each shell, against a real sshd on loopback: what arrives is what is said to arrive."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from casebook.launch.read import read
from casebook.launch.source import Source

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
RECORDER = '#!/bin/bash\nprintf \'%s\\0\' "$@" > "$(dirname "$0")/argv"\n'
FLAGS = "-m sglang.launch_server --model-path m"

pytestmark = pytest.mark.skipif(
    not (os.access(SSHD, os.X_OK) and shutil.which("ssh") and shutil.which("ssh-keygen")),
    reason="no sshd to start",
)


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[str], Path]]:
    """``(the ssh command up to the host, folder with the recorder)``."""
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "user"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    (folder / "python").write_text(RECORDER)
    (folder / "python").chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    config = folder / "config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\n"
        f"StrictModes no\nUsePAM no\nPidFile none\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    server = subprocess.Popen(
        [SSHD, "-D", "-e", "-f", str(config)], stderr=subprocess.PIPE, text=True
    )
    assert server.stderr is not None
    line = server.stderr.readline()
    command = [
        "ssh",
        "-p",
        str(port),
        "-i",
        str(folder / "user"),
        "-o",
        "StrictHostKeyChecking=no",
        "-o",
        "BatchMode=yes",
        "-o",
        f"UserKnownHostsFile={folder}/known",
        "-o",
        "LogLevel=ERROR",
        f"{getpass.getuser()}@127.0.0.1",
    ]
    try:
        if (
            "listening" not in line
            or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
        ):
            pytest.skip(f"sshd does not serve here: {line.strip()}")
        yield command, folder
    finally:
        server.terminate()
        server.wait()


@pytest.mark.parametrize(
    "script",
    [
        f"SSH PY {FLAGS} --json-model-override-args '{{\"a\": 1}}'",
        f"SSH 'PY {FLAGS} --json-model-override-args '\\''{{\"a\": 1}}'\\'",
        f'SSH "PY {FLAGS} --json-model-override-args \'{{\\"a\\": 1}}\'"',
        f'SSH "PY {FLAGS} --json-model-override-args {{\\"a\\":1,\\"b\\":2}}"',
        f"X='a  b'; SSH PY {FLAGS} --served-model-name \"$X\"",
        f"X='a  b'; SSH \"PY {FLAGS} --served-model-name '$X'\"",
        f'SSH <<EOF\nX=late\nPY {FLAGS} --served-model-name "[$X]" \\$X\nEOF',
        f"SSH bash -s <<'EOF'\nX='la te'\nPY {FLAGS} --served-model-name \"$X\" $X\nEOF",
        f"SSH bash -c \"'PY {FLAGS} --port 1'\"",
        f"SSH bash -c 'PY {FLAGS} --port 1'",
        f'SSH "bash -c \\"PY {FLAGS} --served-model-name \'a b\'\\""',
    ],
)
def test_what_arrives_is_what_is_said(ssh: tuple[list[str], Path], script: str) -> None:
    command, folder = ssh
    (folder / "argv").unlink(missing_ok=True)
    script = script.replace("PY", str(folder / "python"))
    real = script.replace("SSH", " ".join(command))
    subprocess.run(
        ["bash", "-c", real],
        capture_output=True,
        check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )
    argv = (
        (folder / "argv").read_bytes().decode().split("\0")[:-1]
        if (folder / "argv").exists()
        else []
    )
    found = read(Source("a.sh", script.replace("SSH", "ssh node") + "\n"), environment={})
    said = [w for one in found.launches for w in ("-m", "sglang.launch_server", *one.launch.argv)]
    if not argv or argv == [""]:
        assert not said
    else:
        assert said == argv
