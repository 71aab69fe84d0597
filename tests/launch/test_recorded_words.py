"""Exact words at each exec, by running the shell in the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from scripts_from_hypothesis import run, script

from casebook.launch import shell_sandbox
from casebook.launch.recorded import read_recorded
from casebook.launch.shell_sandbox import record
from casebook.launch.source import Source

pytestmark = pytest.mark.skipif(
    bool(shell_sandbox.unavailable()), reason=shell_sandbox.unavailable() or "sandbox"
)
SERVER = "python -m sglang.launch_server --model-path m"


def test_the_recorder_tells_what_bash_passes(tmp_path: Path) -> None:
    compared = 0

    @settings(
        max_examples=60,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(script)
    def compare(text: str) -> None:
        nonlocal compared
        wanted = run(text.replace("é", "e").replace("–", "-").replace("“", "q"), tmp_path)
        if wanted is None:
            return
        text = text.replace("é", "e").replace("–", "-").replace("“", "q")
        calls = record(text, commands=["rec"]).calls
        got = [list(c.arguments) or [""] for c in calls if c.name == "rec"]
        assert got == [c or [""] for c in wanted]
        compared += 1

    compare()
    assert compared > 40


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"nohup {SERVER} --page-size $((2*32)) &", ["--page-size", "64"]),
        (f"exec {SERVER} --page-size $((2*32))", ["--page-size", "64"]),
        (f"env -u X A=1 {SERVER} --port $((1+1))", ["--port", "2"]),
        (f"bash -c '{SERVER} --port '$((1+1))", ["--port", "2"]),
        (f"numactl -N 0 {SERVER} --port ${{X:-$((1+1))}}", ["--port", "2"]),
        (
            "torchrun --nproc_per_node=2 -m sglang.launch_server --model-path m --port $((1+1))",
            ["--port", "2"],
        ),
        (f"for i in 7; do {SERVER} --port $((i+1)); done", ["--port", "8"]),
        (f'f() {{ {SERVER} --port "$1$1"; }}; f 4', ["--port", "44"]),
        (f'ssh h "{SERVER} --port $((1+1))"', ["--port", "2"]),
        (f"ssh h <<'E'\n{SERVER} --port $((1+1))\nE", ["--port", "2"]),
        (f"ssh a ssh b {SERVER} --port $((1+1))", ["--port", "2"]),
        (f"cat > r.sh <<'E'\n{SERVER} --port $(($1+1))\nE\nbash r.sh 1", ["--port", "2"]),
        (f"/opt/venv/bin/{SERVER} --port $((1+1)) > /var/log/x/y.log", ["--port", "2"]),
        (
            f"set -e; cd /opt/app; source venv/bin/activate; {SERVER} --port $((1+1))",
            ["--port", "2"],
        ),
    ],
)
def test_through_wrappers_and_shells(text: str, words: list[str]) -> None:
    found = read_recorded(Source("a.sh", text + "\n"))
    (one,) = found.launches
    assert list(one.launch.argv) == ["--model-path", "m", *words]
    assert one.exact
    assert all(place is not None for place in one.places)
