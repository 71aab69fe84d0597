"""Tests of code that changes its whole process run it in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casebook.sandbox.boot import INSIDE


@pytest.fixture
def in_child(tmp_path: Path) -> Callable[..., Any]:
    """Run a script with ``casebook_inside`` importable; returns the JSON that it prints last."""

    def run(script: str, *arguments: str, python: str = sys.executable, **env: str) -> Any:
        path = tmp_path / "script.py"
        path.write_text(script, "utf-8")
        done = subprocess.run(
            [python, str(path), *arguments],
            env={**os.environ, "PYTHONPATH": str(INSIDE), "PYTHONDONTWRITEBYTECODE": "1", **env},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
