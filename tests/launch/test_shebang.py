"""A script for another shell is read, said to be so, and not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from casebook.ladder.climb import read_any
from casebook.launch.read import read
from casebook.launch.recorded import read_recorded
from casebook.launch.shebang import interpreter
from casebook.launch.source import Source, read_source

RUN = "python -m sglang.launch_server --model-path Qwen/Qwen3-8B\n"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("", ""),
        ("#!/bin/bash -l", "bash"),
        ("#! /usr/bin/env bash", "bash"),
        ("#!/bin/sh -e", "sh"),
        ("#!/bin/dash\r", "dash"),
        ("#!/usr/bin/env -S zsh -f", "zsh"),
        ("#!/usr/bin/env -S A=1 python3 -u", "python3"),
    ],
)
def test_the_first_line_names_the_interpreter(line: str, name: str) -> None:
    assert interpreter(Source("a.sh", f"{line}\n{RUN}" if line else RUN)) == name


@pytest.mark.parametrize("shell", ["sh", "dash", "zsh", "ksh"])
def test_another_shell_is_told_and_not_run(shell: str) -> None:
    source = Source("a.sh", f"#!/bin/{shell}\nX=$(date)\n{RUN}")
    found = read_recorded(source)
    assert "read-not-run" in found.rules
    assert f"`{shell}`" in found.notes[0] and "in the sandbox" not in found.kind
    assert found.launches[0].launch.argv == ("--model-path", "Qwen/Qwen3-8B")
    assert not found.errors


def test_bash_is_run_without_such_a_word() -> None:
    for line in ("", "#!/bin/bash\n", "#!/usr/bin/env bash\n"):
        assert "read-not-run" not in read(Source("a.sh", line + RUN)).rules


def test_what_is_not_a_bash_script_is_told_where_running_was_asked_for(tmp_path: Path) -> None:
    program = (
        '#!/usr/bin/env python3\nCOMMAND = ["python", "-m", "sglang.launch_server", "--tp", "2"]\n'
    )
    (tmp_path / "start").write_text(program)
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:8\n{RUN}")
    for name, kind in (("start", "Python program"), ("job.sh", "Slurm batch script")):
        found = read_any(read_source(tmp_path / name), release="0.5.11", run_shell=True)
        assert (
            found.notes[-1]
            == f"{name} was read without running it ({kind}): only bash scripts are run."
        )
        assert found.launches
