"""The process that runs one notebook: ``python -m casebook.runs.execute_one JOB.json``.

It runs papermill with a kernel of the Python it runs under itself, reports how that ended, and is
thrown away. A process for each run because papermill's ``cwd`` is not safe between threads, and so
that one deadline and one kill take everything with them. It ends by itself when its standard input
closes, which is what happens when the batch that started it is killed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from casebook.runs.files import write_json, write_text
from casebook.runs.imports import skip_hdfs, skip_slow_parser
from casebook.runs.processes import TOKEN_VARIABLE, kill_marked, kill_tree

# A socket's path has about 100 bytes on every system; nbclient adds a number to ours.
_LONGEST_SOCKET_PATH = 90


@dataclass(frozen=True)
class Job:
    """What the process is told, in its JSON file."""

    notebook: str
    parameters: dict[str, Any]
    output: str
    report: str
    """Where the ending goes, as JSON: error, message, cell."""
    progress: str
    """Where the number of the running cell and of all cells go, as text."""
    cwd: str
    seconds: float
    scratch: str
    """A folder of the run's own, for the kernel's sockets and settings."""

    def write(self, path: Path) -> None:
        """For :func:`main` to read."""
        write_json(path, asdict(self))


def main(path: str) -> int:
    """Run the job in the file ``path``; the exit code is 0 whenever there is a report."""
    job = Job(**json.loads(Path(path).read_text(encoding="utf-8")))
    threading.Thread(target=_end_with_parent, args=[job.scratch], daemon=True).start()
    write_json(Path(job.report), run(job))
    return 0


def run(job: Job) -> dict[str, Any]:
    """Run the notebook and say how it ended, by the class of what it raised."""
    skip_slow_parser()
    skip_hdfs()
    import nbformat
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    seen = _Progress(Path(job.progress))
    end = time.monotonic() + job.seconds
    ending: dict[str, Any] = {"error": "", "message": "", "cell": None}
    try:
        notebook = nbformat.read(job.notebook, as_version=4)
        _refuse_other_languages(notebook)
        _register(seen)
        done = papermill.execute_notebook(
            notebook,
            job.output,
            parameters=job.parameters,
            engine_name="casebook",
            kernel_name="python3",
            language="python",
            progress_bar=False,
            cwd=job.cwd,
            kernel_manager_class=_kernel_manager(Path(job.scratch)),
            # Asked anew for each cell: one limit for the whole notebook, which papermill lacks.
            timeout_func=lambda _cell: max(0.01, end - time.monotonic()),
        )
        if (left := _left_early(done)) is not None:
            ending |= {"error": "SystemExit", "cell": left}
    except PapermillExecutionError as error:
        ending |= {"error": "PapermillExecutionError", "cell": error.exec_count}
        ending["message"] = f"{error.ename}: {error.evalue}"
    except (CellTimeoutError, DeadKernelError, NoSuchKernel) as error:
        ending |= {"error": type(error).__name__, "message": str(error), "cell": seen.cell}
    except Exception as error:
        ending |= {"error": type(error).__name__, "message": str(error), "cell": seen.cell}
        _log_traceback(error)
    return ending


def _log_traceback(error: Exception) -> None:
    """Leave the traceback of an ending we do not know in the run's log."""
    import traceback

    traceback.print_exception(error)


class _Progress:
    """Counts the cells as the kernel does, and leaves the count where the batch sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cell: int | None = None

    def starts(self, cells: list[Any], index: int) -> None:
        """Cell ``index`` starts; prose and empty cells have no number."""
        if _runs(cells[index]):
            self.cell = sum(map(_runs, cells[: index + 1]))
            write_text(self.path, f"{self.cell} {sum(map(_runs, cells))}")


def _runs(cell: Any) -> bool:
    return cell.cell_type == "code" and bool(cell.source.strip())


def _register(seen: _Progress) -> None:
    from papermill.engines import NBClientEngine, papermill_engines

    class CasebookEngine(NBClientEngine):
        """Papermill's own, telling which cell it runs."""

        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
            cell_start: Callable[..., None] = nb_man.cell_start

            def starts(cell: Any, index: int) -> None:
                seen.starts(nb_man.nb.cells, index)
                cell_start(cell, index)

            nb_man.cell_start = starts
            return super().execute_managed_notebook(nb_man, kernel_name, **options)

    papermill_engines.register("casebook", CasebookEngine)


def _kernel_manager(scratch: Path) -> type:
    """A kernel manager that starts *this* Python, whatever kernels are installed under its name."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    socket = scratch / "kernel"
    # Over TCP any user of the machine can listen in, and ipykernel says so in every notebook.
    local = hasattr(os, "fork") and len(str(socket)) < _LONGEST_SOCKET_PATH
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    options: dict[str, Any] = {"transport": "ipc", "ip": str(socket)} if local else {}
    if not local:
        argv.append("--IPKernelApp.log_level=ERROR")
    spec = KernelSpec(argv=argv, display_name="Python 3 (casebook)", language="python")

    class RunningPythonManager(AsyncKernelManager):
        """One kernel: the interpreter this process runs under."""

        def __init__(self, **given: Any) -> None:
            # In the run's own folder, which goes with the run even when that is killed.
            own = {"connection_file": str(scratch / "connection.json")}
            super().__init__(**(given | own | options))

        @property
        def kernel_spec(self) -> KernelSpec:
            return spec

    return RunningPythonManager


def _refuse_other_languages(notebook: Any) -> None:
    from jupyter_client.kernelspec import NoSuchKernel

    language = notebook.metadata.get("kernelspec", {}).get("language", "python")
    if language.lower() != "python":
        raise NoSuchKernel(f"It is written in {language}; only Python notebooks are run here.")
    if importlib.util.find_spec("ipykernel") is None:
        raise NoSuchKernel("ipykernel is not installed beside casebook; run 'make' again.")


def _left_early(notebook: Any) -> int | None:
    """The number of a cell that called ``exit()``, which papermill takes for success."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            for output in cell.outputs:
                if output.output_type == "error" and output.ename == "SystemExit":
                    return cell.execution_count
    return None


def _end_with_parent(scratch: str) -> None:
    # os.read, because a thread inside sys.stdin's buffer upsets the interpreter's exit.
    while os.read(0, 1024):
        pass
    kill_tree(os.getpid(), spare_root=True)
    if token := os.environ.get(TOKEN_VARIABLE):
        kill_marked(token, spare=os.getpid())
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
