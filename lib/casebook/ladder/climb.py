"""Gather the rungs that there are, from files, a log, a process and a running server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from casebook.errors import CasebookError
from casebook.ladder.ladder import Ladder, build
from casebook.launch import Launch
from casebook.launch.analysis import Analysis
from casebook.launch.live import ask, read_process
from casebook.launch.mend import read_mended
from casebook.launch.read import kind_of, read
from casebook.launch.recorded import read_recorded
from casebook.launch.server_log import read_log
from casebook.launch.source import Source, read_source
from casebook.resolution import Trail, trace


def climb(
    script: Path | str | None = None,
    *,
    intended: Path | str | None = None,
    log: Path | str | None = None,
    url: str | None = None,
    pid: int | None = None,
    release: str = "0.5.11",
    gpu: str = "B200",
    model: str | None = None,
    number: int = 0,
    run_shell: bool = True,
    resolve: bool = True,
    api_key: str | None = None,
) -> Ladder:
    """The ladder of the ``number``-th server in ``script``.

    ``intended`` is a script or a command line that was meant; without it the script, mended, counts.
    ``run_shell`` lets the script's shell run in the sandbox where there is one; ``resolve`` asks the
    release's own code (needs its capsule). Raises CasebookError in one sentence for a rung that was
    named and cannot be read.
    """
    notes: list[str] = []
    analysis: Analysis | None = None
    typed: Launch | None = None
    argv: Launch | None = None
    if script is not None:
        source = read_source(script)
        analysis = read_any(source, release=release, run_shell=run_shell)
        notes += analysis.notes
        typed, argv = _pick(read_mended(source, release=release), number), _pick(analysis, number)
        if argv is None:
            notes.append(f"{source.name} starts no SGLang server that could be found.")
    if pid is not None:
        argv = read_process(pid)
    trail = _resolved(argv, release, gpu, model, notes) if resolve and argv is not None else None
    return build(
        release=release,
        intended=_meant(intended, release),
        script=typed,
        argv=argv,
        trail=trail,
        log=read_log(log) if log is not None else None,
        live=ask(url, api_key=api_key) if url else None,
        analysis=analysis,
        notes=notes,
    )


def read_any(source: Source, *, release: str, run_shell: bool) -> Analysis:
    """A source's launches; a bash script's with its shell run in the sandbox, if asked.

    What is not run although it was asked for is told in the notes."""
    kind = kind_of(source)
    if run_shell and kind == "bash":
        return read_recorded(source, release=release)
    found = read(source, kind=kind, release=release)
    if not run_shell:
        return found
    told = f"{source.name} was read without running it ({found.kind}): only bash scripts are run."
    return replace(found, notes=(*found.notes, told))


def _pick(analysis: Analysis, number: int) -> Launch | None:
    return analysis.launches[number].launch if number < len(analysis.launches) else None


def _meant(intended: Path | str | None, release: str) -> Launch | None:
    if intended is None:
        return None
    if isinstance(intended, Path) or Path(intended).is_file():
        return _pick(read_mended(read_source(intended), release=release), 0)
    return Launch.from_text(intended)


def _resolved(
    argv: Launch, release: str, gpu: str, model: str | None, notes: list[str]
) -> Trail | None:
    try:
        trail = trace(argv, release=release, gpu=gpu, model=model)
    except CasebookError as error:
        notes.append(f"The launch was not resolved: {error}")
        return None
    if not trail.outcome.starts:
        notes.append(f"SGLang {trail.release} does not start it: {trail.outcome.sentence}")
    return trail
