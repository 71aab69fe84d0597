"""``casebook case new``: a case from a launch as it goes now."""

from __future__ import annotations

from pathlib import Path

import pytest

from casebook.cases import read_case
from casebook.cli import main
from casebook.errors import CaseError

QWEN = ["--model-path", "Qwen/Qwen3.6-27B"]


def write(folder: Path, *words: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["case", "new", "mine", "--folder", str(folder), *words])
    assert isinstance(stop.value.code, int)
    return stop.value.code


@pytest.mark.capsule
@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            ["--page-size", "32"],
            {"kind": "argument", "argument": "page_size", "ends_as": 1, "verdict": ("overridden",)},
        ),
        (["--speculative-algorithm", "NEXTN"], {"kind": "error", "type": "ValueError"}),
        (["--no-such-flag"], {"kind": "refused", "says": "unrecognized arguments: --no-such-flag"}),
        ([], {"kind": "starts"}),
    ],
)
def test_what_goes_wrong_becomes_the_statement(
    tmp_path: Path, words: list[str], fault: dict[str, object]
) -> None:
    assert write(tmp_path, "--source", "https://example.org/1", "--", *QWEN, *words) == 0
    case = read_case(tmp_path / "mine.toml")
    assert (case.seen_in, case.gpu, case.source) == ("==0.5.11", "B200", "https://example.org/1")
    found = case.fault[0].model_dump()
    assert {key: found[key] for key in fault} == fault


@pytest.mark.capsule
def test_the_written_case_reproduces_and_is_not_overwritten(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--argument", "attention_backend", "--", "SGLANG_ENABLE_SPEC_V2=0", "python", "-m",
             "sglang.launch_server", *QWEN, "--api-key", "sk-secret-secret-secret"]  # fmt: skip
    assert write(tmp_path, *words) == 0
    path = tmp_path / "mine.toml"
    case = read_case(path)
    assert case.launch.env == {"SGLANG_ENABLE_SPEC_V2": "0"}
    assert "secret-secret" not in path.read_text("utf-8")
    with pytest.raises(SystemExit) as stop:
        main(["case", "run", str(path), "--releases", "0.5.11"])
    assert stop.value.code == 0
    assert write(tmp_path, *words) == 2
    assert "is there already" in capfd.readouterr().err


def test_a_name_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match="is no case's name"):
        read_case(tmp_path / "My Case.toml")
