"""A real Dask scheduler and two worker processes on loopback, for a test to use and to kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import distributed

from casebook.runs.processes import kill_tree


class Cluster:
    """A scheduler and two workers of one thread each, all on loopback."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "scheduler.json"
        self.log = (folder / "cluster.log").open("wb")
        common = ["--host", "127.0.0.1", "--no-dashboard"]
        self.scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", *common)
        # The worker waits for the scheduler's file by itself.
        alone = [
            "--nthreads",
            "1",
            "--nworkers",
            "1",
            "--no-nanny",
            "--local-directory",
            str(folder),
        ]
        self.workers = [self._start("worker", *alone, *common, "--scheduler-file") for _ in "ab"]
        with distributed.Client(scheduler_file=str(self.file), timeout=60) as client:
            client.wait_for_workers(2, timeout=60)
        self.address: str = json.loads(self.file.read_text())["address"]

    def _start(self, kind: str, *options: str) -> subprocess.Popen[bytes]:
        placed = [
            word
            for option in options
            for word in ([option, str(self.file)] if option == "--scheduler-file" else [option])
        ]
        command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *placed]
        env = os.environ | {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}
        return subprocess.Popen(command, stdout=self.log, stderr=self.log, env=env)

    def close(self) -> None:
        for process in [*self.workers, self.scheduler]:
            kill_tree(process.pid)
            process.wait()
        self.log.close()
