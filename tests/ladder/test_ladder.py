"""The ladder on the incident's damaged variants, and its command."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from casebook.ladder.climb import climb
from casebook.ladder.commands import check, ladder
from casebook.paths import data_dir

INCIDENT = data_dir() / "incident"
FLAG = "mamba_scheduler_strategy"


@pytest.mark.parametrize(
    ("name", "rung", "reason"),
    [
        ("launch-1-blank.sh", "argv", "blank-after-backslash"),
        ("launch-2-comment.sh", "argv", "comment-in-continuation"),
        ("launch-3-crlf.sh", "argv", "crlf-line-ends"),
        ("launch-4-heredoc.sh", "script", "expanded-too-early"),
        ("launch-5-folded.yaml", "argv", "folded-scalar-continuation"),
        ("launch-6-old-copy.sh", "script", "compare it with the script"),
    ],
)
def test_the_first_wrong_rung_of_each_variant(name: str, rung: str, reason: str) -> None:
    found = climb(INCIDENT / name, intended=INCIDENT / "launch.sh", resolve=False)
    row = found.row(FLAG)
    assert row is not None
    assert row.wrong_at == rung
    assert reason in row.why
    assert found.answer().count(FLAG)


def test_the_sound_script_is_sound() -> None:
    found = climb(INCIDENT / "launch.sh", resolve=False)
    assert not found.broken
    assert "Every argument is the same" in found.answer()


def test_the_log_shows_that_another_copy_ran(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "server_args=ServerArgs(model_path='Qwen/Qwen3.6-27B', tp_size=2, mamba_scheduler_strategy='no_buffer', mem_fraction_static=0.8)\n"
    )
    found = climb(INCIDENT / "launch.sh", log=log, resolve=False)
    row = found.row(FLAG)
    assert row is not None
    assert row.wrong_at == "logged"
    assert "another copy" in row.why
    assert not (found.row("mem_fraction_static") or row).wrong_at


@pytest.mark.capsule
def test_the_incident_in_one_look() -> None:
    found = climb(INCIDENT / "launch-2-comment.sh", gpu="B200")
    row = found.row(FLAG)
    assert row is not None
    assert row.values["script"] == "extra_buffer"
    assert row.values["argv"] == "—"
    assert row.values["resolved"] == "no_buffer"
    assert row.wrong_at == "argv"
    assert any("not compatible with radix cache" in note for note in found.notes)


def test_the_commands() -> None:
    run = CliRunner().invoke
    bad = run(check, [str(INCIDENT / "launch-2-comment.sh")])
    assert bad.exit_code == 1
    assert "comment-in-continuation" in bad.output
    assert run(check, [str(INCIDENT / "launch.sh")]).exit_code == 0
    two = run(
        check, [str(INCIDENT / "launch.sh"), "--other", str(INCIDENT / "launch-6-old-copy.sh")]
    )
    assert two.exit_code == 1
    assert "two-copies-differ" in two.output
    climbed = run(ladder, [str(INCIDENT / "launch-2-comment.sh"), "--no-resolve"])
    assert climbed.exit_code == 1
    assert FLAG in climbed.output
    assert run(ladder, []).exit_code == 2
