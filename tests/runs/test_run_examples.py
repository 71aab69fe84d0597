"""The examples work as they stand: the file of runs, the Slurm task, the indexed Job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from casebook.runs import manifest, suite
from casebook.runs.commands import run
from casebook.runs.spec import repo_root

EXAMPLES = repo_root() / "examples"


def test_the_files_of_runs_name_real_notebooks_and_parameters() -> None:
    (drafter,) = suite.plan(repo_root() / "notebooks", runs=EXAMPLES / "drafter_ten_minutes.yaml")
    assert drafter.parameters["bf16"] is True
    specs = suite.plan(repo_root() / "notebooks", runs=EXAMPLES / "runs.yaml")
    job = yaml.safe_load((EXAMPLES / "kubernetes-job.yaml").read_text())
    assert len(specs) == job["spec"]["completions"]


def test_the_job_passes_its_index_to_the_command(tmp_path: Path) -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes-job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    program, subcommand, *options = container["command"]
    assert (program, subcommand) == (".venv/bin/casebook", "run")
    # As Kubernetes expands it, with a manifest that is there; the index is past its end.
    (tmp_path / "m.jsonl").touch()
    options = [o.replace("$(JOB_COMPLETION_INDEX)", "7") for o in options]
    options = [re.sub(r"^--manifest=.*", f"--manifest={tmp_path}/m.jsonl", o) for o in options]
    answer = CliRunner().invoke(run, options)
    assert answer.exit_code == 2
    assert "not 7" in answer.output


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_the_slurm_task_does_its_line(make_notebook: Any, tmp_path: Path) -> None:
    notebook = make_notebook("n", "# N", "assert n == 1", parameters="n: int = 0")
    plan = tmp_path / "m.jsonl"
    assert suite.run_suite(notebook.parent, grid={"n": [0, 1]}, plan_to=plan) == 0
    # The checkout stands in for the folder that the job was submitted from; results go elsewhere.
    submitted = tmp_path / "checkout"
    (submitted / ".venv/bin").mkdir(parents=True)
    program = shutil.which("casebook", path=f"{Path(sys.executable).parent}")
    if program is None:
        pytest.skip("the casebook command is not beside this Python")
    (submitted / ".venv/bin/casebook").symlink_to(program)
    env = os.environ | {"SLURM_SUBMIT_DIR": str(submitted), "SLURM_ARRAY_TASK_ID": "1"}
    done = subprocess.run(
        ["bash", EXAMPLES / "slurm-array.sh", str(plan)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = (submitted / "results/records").iterdir()
    assert record.stem == manifest.pick(plan, 1)["key"]
