"""The command line: exit codes and one-sentence errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from casebook.cli import main

SERVER = ["python", "-m", "sglang.launch_server"]
QWEN = ["--model-path", "Qwen/Qwen3.6-27B"]


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(words))
    out, err = capfd.readouterr()
    code = stop.value.code
    assert isinstance(code, int)
    return code, out, err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["explain"], "no launch given"),
        (["explain", "--release", "9.9", "--", *SERVER, *QWEN], "Unknown SGLang release '9.9'"),
        (["explain", "--gpu", "B2000", "--", *SERVER, *QWEN], "Did you mean"),
        (["explain", "--", *SERVER, "--model-path", "Qwen/Nope"], "Unknown model 'Qwen/Nope'"),
        (["explain", "--", "python", "-m", "vllm"], "does not start an SGLang server"),
        (["explain", "--", 'python "x'], "cannot be split into words"),
        (["explain", "--python", "/no/such/python", "--", *SERVER, *QWEN], "/no/such/python"),
        (["explain", "--nonsense", "--", *SERVER], "No such option"),
        (["compare", "--gpus", "B2000", "--", *SERVER, *QWEN], "Did you mean"),
        (["compare", "--gpus", " , ", "--", *SERVER, *QWEN], "no name given"),
        (["compare", "--gpus", "B200", "--models", "x", "--", *SERVER], "compare over one thing"),
        (["run", "-y", "[1]"], "must be a mapping"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    capfd: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    code, out, err = run(capfd, *words)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in out + err


def test_every_command_has_help(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "--help")
    assert code == 0
    names = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line.strip()]
    assert {"explain", "check", "ladder", "drafter-check"} <= set(names)
    for name in names:
        code, out, _ = run(capfd, name, "--help")
        assert (code, out.startswith("Usage:")) == (0, True)


def test_help_waits_for_no_heavy_import() -> None:
    heavy = {"torch", "distributed", "matplotlib", "papermill"}
    code = (
        "import sys\nfrom casebook.cli import cli\ncli(['--help'], standalone_mode=False)\n"
        f"sys.exit(repr(found) if (found := {heavy} & sys.modules.keys()) else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("table", ["releases", "gpus", "models"])
def test_tables(capfd: pytest.CaptureFixture[str], table: str) -> None:
    code, out, _ = run(capfd, table)
    assert code == 0
    assert len(out.splitlines()) > 5


@pytest.mark.capsule
def test_a_launch_that_starts_exits_0(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "explain", "--", *SERVER, *QWEN, "--page-size", "32")
    assert code == 0
    assert "STARTS" in out
    assert "page_size" in out


@pytest.mark.capsule
def test_a_rejected_launch_exits_1_with_the_reason(capfd: pytest.CaptureFixture[str]) -> None:
    words = [*SERVER, *QWEN, "--speculative-algorithm", "NEXTN"]
    code, out, _ = run(capfd, "explain", "--", *words)
    assert code == 1
    assert "REJECTED" in out
    assert "server_args.py:1082" in out


@pytest.mark.capsule
def test_a_refused_flag_exits_1_with_its_neighbours(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "explain", "--", *SERVER, *QWEN, "--mamba-schedular-strategy", "x")
    assert code == 1
    text = " ".join(out.split())
    assert "unrecognized arguments: --mamba-schedular-strategy x" in text
    assert "nearest: --mamba-scheduler-strategy" in text


@pytest.mark.capsule
def test_secrets_reach_no_output(capfd: pytest.CaptureFixture[str]) -> None:
    secret = "sk-do-not-print-me-123"
    words = [f"HF_TOKEN={secret}x", *SERVER, *QWEN, "--api-key", secret]
    for extra in ([], ["--json"], ["--why", "api_key"]):
        _, out, err = run(capfd, "explain", *extra, "--", *words)
        assert secret not in out + err
    _, out, err = run(capfd, "explain", "--", *words, "--no-such-flag", secret)
    assert secret not in out + err


@pytest.mark.capsule
def test_json_is_the_whole_trail(capfd: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capfd, "explain", "--json", "--", *SERVER, *QWEN)
    record = json.loads(out)
    assert record["outcome"]["kind"] == "starts"
    fields = {argument["field"] for argument in record["arguments"]}
    assert {"model_path", "chunked_prefill_size"} <= fields


@pytest.mark.capsule
def test_an_unknown_architecture_is_sglangs_to_reject(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = {"architectures": ["FooForCausalLM"], "model_type": "foo"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, _ = run(capfd, "explain", "--", *SERVER, "--model-path", str(tmp_path))
    assert code == 1
    assert "REJECTED" in out
    assert "foo" in out


@pytest.mark.capsule
def test_models_side_by_side(capfd: pytest.CaptureFixture[str]) -> None:
    names = "Qwen/Qwen3-8B,Qwen/Qwen3.6-27B"
    for launch in ([*SERVER, *QWEN], SERVER):  # its own model is replaced, or it has none
        code, out, _ = run(capfd, "compare", "--models", names, "--", *launch, "--page-size", "32")
        assert code == 0
        row = next(line for line in out.splitlines() if "page_size" in line)
        assert [cell.strip() for cell in row.split("│")[2:4]] == ["32", "1"]


@pytest.mark.capsule
@pytest.mark.slow
def test_gpus_side_by_side(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "compare", "--gpus", "B200,RTX 5090", "--", *SERVER, *QWEN)
    assert code == 0
    row = next(line for line in out.splitlines() if "chunked_prefill_size" in line)
    assert [cell.strip() for cell in row.split("│")[2:4]] == ["16384", "2048"]
