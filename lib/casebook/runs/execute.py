"""Run one notebook in a process of its own, within a limit of time, and say how it ended."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from casebook.runs.execute_one import Job
from casebook.runs.files import read_json
from casebook.runs.outcome import Evidence, RunResult, classify
from casebook.runs.processes import TOKEN_VARIABLE, kill_marked, kill_tree
from casebook.runs.spec import RunSpec, repo_root
from casebook.runs.verdict import FILE_VARIABLE, STRICT_VARIABLE, Verdict

DEFAULT_SECONDS = 1800.0
# The run's own process stops at the limit and saves what it has; if it hangs, this much later it is killed.
GRACE_SECONDS = 20.0
_POLL_SECONDS = 0.1


class BatchStoppedError(Exception):
    """The batch was stopped; the run was killed and has no result."""


def execute(
    spec: RunSpec,
    out: Path,
    *,
    seconds: float = DEFAULT_SECONDS,
    grace: float = GRACE_SECONDS,
    stop: threading.Event | None = None,
    on_cell: Callable[[int, int], None] | None = None,
) -> RunResult:
    """Run ``spec``; the executed notebook goes to ``out/notebooks``, a log (if any) to ``out/logs``.

    ``on_cell(n, of)`` is told of each cell as it starts. The working directory of the notebook is
    the checkout. A RunError if the spec does not fit its notebook.
    """
    spec.check()
    output = out.resolve() / "notebooks" / f"{spec.slug}.ipynb"
    log = out.resolve() / "logs" / f"{spec.slug}.log"
    for path in (output, log):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="cb-"))
    token = secrets.token_hex(8)
    job = Job(
        notebook=str(spec.notebook),
        parameters=spec.parameters,
        output=str(output),
        report=str(scratch / "report.json"),
        progress=str(scratch / "progress"),
        cwd=str(repo_root()),
        seconds=seconds,
        scratch=str(scratch),
    )
    job.write(scratch / "job.json")
    started, clock = datetime.now(UTC), time.monotonic()
    try:
        with log.open("wb") as log_file:
            process = subprocess.Popen(
                # -P: a file of the checkout must not pass for a module.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "casebook.runs.execute_one",
                    str(scratch / "job.json"),
                ],
                stdin=subprocess.PIPE,  # never written to; it closes if this process dies
                stdout=log_file,
                stderr=subprocess.STDOUT,
                cwd=repo_root(),
                env=_environment(scratch, token),
                start_new_session=True,
            )
            try:
                exit_code = _wait(process, clock + seconds + grace, job, stop, on_cell)
            finally:
                kill_tree(process.pid)
                process.wait()
                if process.stdin:
                    process.stdin.close()
                kill_marked(token)
        seen = _evidence(job, scratch, exit_code, seconds, log)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if log.exists() and log.stat().st_size == 0:
            log.unlink()
    state, sentence = classify(seen)
    return RunResult(
        spec,
        state,
        time.monotonic() - clock,
        sentence,
        seen.cell,
        seen.verdict,
        output if output.exists() else None,
        started.isoformat(timespec="seconds"),
    )


def _wait(
    process: subprocess.Popen[bytes],
    deadline: float,
    job: Job,
    stop: threading.Event | None,
    on_cell: Callable[[int, int], None] | None,
) -> int | None:
    """The exit code, or None at the deadline; tells ``on_cell`` on the way."""
    told = None
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        if stop is not None and stop.is_set():
            raise BatchStoppedError
        if time.monotonic() > deadline:
            return None
        cell = _progress(Path(job.progress))
        if on_cell and cell and cell != told:
            told = cell
            on_cell(*cell)


def _environment(scratch: Path, token: str) -> dict[str, str]:
    env = dict(os.environ)
    env.pop(STRICT_VARIABLE, None)  # we read the verdict itself
    for name in ("CASEBOOK_DATA", "CASEBOOK_CACHE"):
        if name in env:  # the run has another working directory than we
            env[name] = str(Path(env[name]).resolve())
    return env | {
        FILE_VARIABLE: str(scratch / "verdict.json"),
        TOKEN_VARIABLE: token,
        # The user's own start-up files for IPython would make a run unlike the next user's.
        "IPYTHONDIR": str(scratch / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }


def _evidence(
    job: Job, scratch: Path, exit_code: int | None, seconds: float, log: Path
) -> Evidence:
    report = read_json(Path(job.report))
    verdict = read_json(scratch / "verdict.json")
    if verdict is not None:
        verdict = Verdict.from_json(verdict).to_json()
    if report is None:
        cell = _progress(Path(job.progress))
        return Evidence(
            exit_code,
            message=_last_line(log),
            cell=cell[0] if cell else None,
            verdict=verdict,
            deadline_seconds=seconds,
        )
    return Evidence(
        exit_code,
        report["error"],
        report["message"],
        report["cell"],
        finished=True,
        verdict=verdict,
        deadline_seconds=seconds,
    )


def _progress(path: Path) -> tuple[int, int] | None:
    try:
        cell, of = path.read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return int(cell), int(of)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
