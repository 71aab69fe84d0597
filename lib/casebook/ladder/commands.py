"""``casebook check``, ``casebook ladder`` and ``casebook record``.

Exit codes: 0 nothing wrong, 1 an argument goes wrong (or a finding of severity error), 2 not readable.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from casebook.console import console
from casebook.ladder.climb import climb, read_any
from casebook.ladder.record import run_recorded
from casebook.launch.copies import compare
from casebook.launch.read import KINDS, read
from casebook.launch.source import Source, read_source


@click.command()
@click.option(
    "--release", default="0.5.11", show_default=True, help="SGLang release whose options count."
)
@click.option(
    "--kind", type=click.Choice(KINDS), help="What FILE is (default: told by its name and text)."
)
@click.option("--other", type=click.Path(path_type=Path), help="A second copy, to be compared.")
@click.option("--no-run", is_flag=True, help="Do not run the shell in the sandbox.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.argument("file", type=click.Path(path_type=Path))
def check(
    release: str, kind: str | None, other: Path | None, no_run: bool, as_json: bool, file: Path
) -> None:
    """Say what in FILE (script, manifest, unit, ...) keeps flags from the server. `-` reads input."""
    source = Source("input", sys.stdin.read()) if str(file) == "-" else read_source(file)
    found = (
        read(source, kind=kind, release=release)
        if kind
        else read_any(source, release=release, run_shell=not no_run)
    )
    findings = list(found.findings)
    if other is not None:
        findings += compare(
            found, read_any(read_source(other), release=release, run_shell=not no_run)
        )
    if as_json:
        click.echo(json.dumps([{**vars(f), "place": str(f.place)} for f in findings], indent=1))
    else:
        click.echo(f"{source.name}: {found.kind}; servers started: {len(found.launches)}")
        for one in found.launches:
            click.echo(f"  {one.launch}{'' if one.exact else f'   (not certain: {one.reason})'}")
        for finding in findings:
            click.echo(f"\n{finding}")
        for text in found.notes:
            click.echo(f"Note: {text}")
    sys.exit(1 if any(f.severity == "error" for f in findings) else 0)


@click.command()
@click.option(
    "--intended", help="A script or a command line that was meant (default: SCRIPT, mended)."
)
@click.option("--log", type=click.Path(path_type=Path), help="The server's log.")
@click.option("--url", help="A running server, as http://HOST:PORT.")
@click.option("--pid", type=click.IntRange(1), help="A running server's process on this machine.")
@click.option("--api-key-env", help="Environment variable that holds the running server's key.")
@click.option("--release", default="0.5.11", show_default=True)
@click.option("--gpu", default="B200", show_default=True)
@click.option("--model", help="Model facts to use where --model-path is a path of another machine.")
@click.option(
    "--server",
    "number",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Which server of SCRIPT.",
)
@click.option("--no-run", is_flag=True, help="Do not run the script's shell in the sandbox.")
@click.option("--no-resolve", is_flag=True, help="Do not ask the release's own code.")
@click.option("--json", "as_json", is_flag=True)
@click.argument("script", type=click.Path(path_type=Path), required=False)
def ladder(
    intended: str | None,
    log: Path | None,
    url: str | None,
    pid: int | None,
    api_key_env: str | None,
    release: str,
    gpu: str,
    model: str | None,
    number: int,
    no_run: bool,
    no_resolve: bool,
    as_json: bool,
    script: Path | None,
) -> None:
    """Follow each argument from what was meant to what the running server says; take what there is."""
    if script is None and log is None and url is None and pid is None:
        raise click.UsageError("nothing to climb: name a SCRIPT, --log, --url or --pid.")
    if api_key_env and api_key_env not in os.environ:
        raise click.UsageError(f"the variable {api_key_env} is not set.")
    found = climb(
        script,
        intended=intended,
        log=log,
        url=url,
        pid=pid,
        release=release,
        gpu=gpu,
        model=model,
        number=number - 1,
        run_shell=not no_run,
        resolve=not no_resolve,
        api_key=os.environ.get(api_key_env) if api_key_env else None,
    )
    if as_json:
        click.echo(found.table().to_json(orient="records", indent=1))
    else:
        from rich.markup import escape
        from rich.table import Table

        out = console(160)
        shown = Table(header_style="bold")
        for column in ("argument", *found.rungs, "wrong at", "why"):
            shown.add_column(column, overflow="fold")
        for row in found.table().to_dict("records"):
            cells = [escape(str(v)) for v in row.values()]
            shown.add_row(*cells, style="bold red" if row["wrong at"] else "")
        out.print(found.answer(), markup=False, highlight=False)
        out.print(shown)
        for text in found.notes:
            out.print(f"Note: {text}", markup=False, highlight=False)
    sys.exit(1 if found.broken else 0)


@click.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("measurement.json"), show_default=True
)
@click.option("--stop-when-ready", is_flag=True, help="Stop the server once it is ready.")
@click.option("--limit", type=click.FloatRange(min=1), help="Stop it after so many seconds.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def record(out: Path, stop_when_ready: bool, limit: float | None, command: tuple[str, ...]) -> None:
    """Start a real server unchanged and write one measurement file. Put the command behind `--`."""
    found = run_recorded(command, out, stop_when_ready=stop_when_ready, limit_seconds=limit)
    click.echo(f"{out}: {found['measured']['outcome']}; GPU memory: {found['nvml']}", err=True)
    sys.exit(0 if found["measured"]["outcome"] == "ok" else 1)
