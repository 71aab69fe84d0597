"""Logs, live servers, processes; bad input of every kind in one sentence; sizes; secrets."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from casebook.errors import LaunchError
from casebook.launch.copies import compare
from casebook.launch.live import ask, read_process
from casebook.launch.read import read, read_file
from casebook.launch.recorded import read_recorded
from casebook.launch.server_log import read_log
from casebook.launch.source import Source

RUN = "python -m sglang.launch_server"
OLD = "[2026-05-01 10:00:00] server_args=ServerArgs(model_path='Qwen/Qwen3-8B', tp_size=2, page_size=64, api_key='sk-secret-1', kv_events=None, mode=<Mode.A: 1>, lora_paths=[('a', 'b')])\n"
NEW = "[2026-09-01 10:00:00] server_args={'model_path': 'Qwen/Qwen3-8B', 'tp_size': 2, 'page_size': 64, 'api_key': 'sk-secret-1'}\n"


@pytest.mark.parametrize(("line", "style"), [(OLD, "object"), (NEW, "dictionary")])
def test_a_log_of_old_and_new_releases(tmp_path: Path, line: str, style: str) -> None:
    path = tmp_path / "server.log"
    path.write_text("INFO start\n" + line + "Load weight begin. avail mem=100.0 GB\n")
    log = read_log(path)
    assert (log.style, log.line) == (style, 2)
    assert log.arguments["tp_size"] == 2
    assert "sk-secret-1" not in str(log)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is empty"),
        (b"\x7fELF\0\0\0binary", "binary"),
        (b"nothing here\n", "no line with"),
        (OLD[:90].encode(), "cut off inside line 1"),
        (NEW[:90].encode(), "cut off inside line 1"),
    ],
)
def test_a_log_that_is_none(tmp_path: Path, data: bytes, sentence: str) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(data)
    with pytest.raises(LaunchError, match=sentence):
        read_log(path)


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("a.sh", b"", "is empty"),
        ("a.sh", b" \n\n", "is empty"),
        ("a.sh", b"\x7fELF\0\0", "binary"),
        ("a.sh", "tür".encode("latin1"), "not UTF-8"),
        ("a.yaml", b"a: [1, 2\n", "not YAML"),
        ("a.yaml", b"- 1\n- 2\n", "one mapping"),
        ("a.service", b"[Service]\nUser=x\n", "no ExecStart"),
        ("Dockerfile", b"FROM x\n", "neither CMD nor ENTRYPOINT"),
        ("a.py", b"def (:\n", "not a Python program"),
    ],
)
def test_a_source_that_is_none(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(LaunchError, match=sentence):
        read_file(path)
    with pytest.raises(LaunchError, match="cannot be read"):
        read_file(tmp_path / "none.sh")


class _Answers(http.server.BaseHTTPRequestHandler):
    answer: tuple[int, bytes] = (200, b"")

    def do_GET(self) -> None:
        status, body = type(self).answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        return None


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Answers]]]:
    handler = type("Handler", (_Answers,), {})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as held:
        threading.Thread(target=held.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{held.server_port}", handler
        held.shutdown()


def test_a_running_server(server: tuple[str, type[_Answers]]) -> None:
    url, handler = server
    info = {
        "model_path": "m",
        "tp_size": 2,
        "api_key": "sk-secret-1",
        "version": "0.5.20",
        "launch_command": "python -m sglang.launch_server --api-key sk-secret-1 --tp-size 2",
    }
    handler.answer = (200, json.dumps(info).encode())
    live = ask(url)
    assert live.arguments["tp_size"] == 2
    assert live.version == "0.5.20"
    assert "sk-secret-1" not in str(live)


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (200, b"<html>hello</html>", "an HTML page"),
        (200, b"", "with nothing"),
        (200, b"{not json", "no JSON"),
        (200, b'{"a": 1}', "names no server arguments"),
        (401, b"", "asks for an API key"),
        (403, b"", "asks for an API key"),
        (404, b"", "HTTP 404"),
        (302, b"", "HTTP 302"),
        (500, b"", "HTTP 500"),
    ],
)
def test_a_server_that_is_none(
    server: tuple[str, type[_Answers]], status: int, body: bytes, sentence: str
) -> None:
    url, handler = server
    handler.answer = (status, body)
    with pytest.raises(LaunchError, match=sentence) as caught:
        ask(url.replace("http://", "http://user:hidden-pass-1@"))
    assert "hidden-pass-1" not in str(caught.value)


def test_nobody_answers() -> None:
    with pytest.raises(LaunchError, match="does not answer"):
        ask("127.0.0.1:9", seconds=2)
    with pytest.raises(LaunchError, match="must look like"):
        ask("ftp://x")


def test_a_process(tmp_path: Path) -> None:
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(
        "print('up', flush=True)\nimport sys\nsys.stdin.read()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "SGLANG_X": "a b"}
    words = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model-path",
        "a b",
        "--json",
        '{"a": 1}',
    ]
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        launch = read_process(process.pid)
        process.communicate()
    assert launch.argv == tuple(words[3:])
    assert launch.env["SGLANG_X"] == "a b"
    with pytest.raises(LaunchError, match="There is no process"):
        read_process(2**22 + 1)


def test_two_copies_that_differ() -> None:
    one = read(Source("here.sh", f"{RUN} --model-path m --page-size 64\n"))
    other = read(Source("there.sh", f"# comment\n{RUN} --model-path m\n"))
    (finding,) = compare(one, other)
    assert finding.rule == "two-copies-differ"
    assert "--page-size 64" in finding.effect
    assert not compare(
        one, read(Source("x.sh", f"# other\n{RUN} --model-path m \\\n --page-size 64\n"))
    )


SECRETS = (
    "hf_plantedtoken0001",
    "sk-planted-key-0002",
    "planted-pass-0003",
    "planted.bearer.0004",
    "planted-in-yaml-0005",
    "planted-glued-0006",
)
BROKEN = "\\ "
LEAKY = f"""export HF_TOKEN={SECRETS[0]}
curl -H "Authorization: Bearer {SECRETS[3]}" http://user:{SECRETS[2]}@host/x
{RUN} --model-path m --api-key {SECRETS[1]} --tp-size 2 {BROKEN}
  --admin-api-key={SECRETS[5]}
ssh node "HF_TOKEN={SECRETS[0]} {RUN} --model-path m --api-key {SECRETS[1]} --json-model-override-args {{"a":1}}"
"""


def _everything(found: object) -> str:
    analysis = found
    parts = [str(f) for f in analysis.findings] + list(analysis.notes) + [analysis.table().to_csv()]  # type: ignore[attr-defined]
    for number, one in enumerate(analysis.launches):  # type: ignore[attr-defined]
        parts += [str(one.launch), repr(one.launch), one.launch.lines(), one.table().to_csv()]
        parts.append(analysis.stages(number).to_csv())  # type: ignore[attr-defined]
    return "\n".join(parts)


def test_planted_secrets_reach_no_output() -> None:
    for found in (read(Source("a.sh", LEAKY)), read_recorded(Source("a.sh", LEAKY))):
        assert found.launches
        text = _everything(found)
        assert not [s for s in SECRETS if s in text]
    compose = f"services:\n  s:\n    environment:\n      HF_TOKEN: {SECRETS[4]}\n    command: [{RUN.replace(' ', ', ')}, --api-key, {SECRETS[1]}, --quantization fp8]\n"
    found = read(Source("compose.yaml", compose))
    assert found.findings
    assert not [s for s in SECRETS if s in _everything(found)]


def test_large_inputs_stay_in_bounds(tmp_path: Path) -> None:
    script = (
        "".join(f"export VAR_{i}='{'x' * 80}'  # a comment\n" for i in range(9500))
        + f"{RUN} --model-path m --page-size 64\n"
    )
    assert len(script) > 1_000_000
    (one,) = read(Source("big.sh", script)).launches
    assert one.launch.value_of("--page-size") == "64"
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        file.write(OLD.encode())
        for _ in range(100):
            file.write(b"x" * 99 + b"\n" + (b"decode batch, token usage 0.5, " * 9 + b"\n") * 3700)
    assert log.stat().st_size > 100_000_000
    tracemalloc.start()
    assert read_log(log).arguments["page_size"] == 64
    assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    tracemalloc.stop()
    services = "".join(
        f"  s{i}:\n    image: lmsysorg/sglang\n    environment:\n      A: b\n    command:\n      - python3\n      - -m\n      - sglang.launch_server\n      - --model-path\n      - m{i}\n"
        for i in range(1000)
    )
    assert services.count("\n") >= 10_000
    found = read(Source("compose.yaml", "services:\n" + services))
    assert len(found.launches) == 1000
    assert found.launches[999].launch.value_of("--model-path") == "m999"
