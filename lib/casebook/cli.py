"""The command line: the same functions as the notebooks use, for a shell.

Exit codes of ``explain``: 0 the launch starts, 1 SGLang does not start it, 2 it could not be asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from casebook import __version__
from casebook.errors import CasebookError

_COLOURS = {
    "rejected": "bold red",
    "overridden silently": "bold magenta",
    "overridden": "yellow",
    "lost": "bold red",
    "honoured": "green",
}
USAGE_EXIT = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="casebook")
def cli() -> None:
    """What will SGLang do with this launch? Asked of SGLang's own code, without a GPU."""


@cli.command(context_settings={"ignore_unknown_options": False})
@click.option("--release", default="0.5.11", show_default=True, help="SGLang release to ask.")
@click.option("--gpu", default="B200", show_default=True, help="GPU profile to simulate.")
@click.option("--gpus", type=click.IntRange(1), help="Number of devices (default: a full node).")
@click.option("--model", help="Model facts to use where --model-path is a path of another machine.")
@click.option(
    "--python",
    "live_python",
    type=click.Path(path_type=Path),
    help="Live mode: a Python that has SGLang and its GPU packages; nothing is simulated.",
)
@click.option("--why", "fields", multiple=True, metavar="ARG", help="Tell one argument's story.")
@click.option("--all", "everything", is_flag=True, help="List defaulted arguments too.")
@click.option("--json", "as_json", is_flag=True, help="Print the trail as JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def explain(
    release: str,
    gpu: str,
    gpus: int | None,
    model: str | None,
    live_python: Path | None,
    fields: tuple[str, ...],
    everything: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Say for each argument of a launch what SGLang does with it.

    Put the launch behind `--`:

        casebook explain --gpu B200 -- python -m sglang.launch_server --model-path Qwen/Qwen3.6-27B
    """
    from casebook import capsule as capsules
    from casebook.resolution import trace

    if not command:
        raise click.UsageError(
            "no launch given; put it behind `--`, as in "
            "`casebook explain -- python -m sglang.launch_server --model-path ...`"
        )
    trail = trace(
        list(command) if len(command) > 1 else command[0],
        release=release,
        gpu=gpu,
        gpus=gpus,
        model=model,
        capsule=capsules.live(live_python) if live_python else None,
    )
    stories = [trail.why(field) for field in fields]
    if as_json:
        click.echo(json.dumps(trail.as_record(), indent=1))
    else:
        # A file or a pipe has no width; a table of file names and values wants some.
        console = Console(width=None if sys.stdout.isatty() else 140)
        _print_outcome(console, trail)
        if stories:
            for story in stories:
                console.print(str(story), highlight=False, markup=False)
        elif trail.arguments:
            console.print(_verdict_table(trail.table(everything)))
        for note in trail.notes:
            console.print(f"Note: {note}", markup=False, highlight=False)
    sys.exit(0 if trail.outcome.starts else 1)


@cli.command()
@click.argument("releases", nargs=-1, required=True)
def capsule(releases: Sequence[str]) -> None:
    """Build (or find) the capsules of RELEASES."""
    from casebook.capsule import ensure

    for release in releases:
        found = ensure(release)
        click.echo(f"SGLang {found.release}: {found.folder}")


@cli.command()
@click.argument("notebooks", nargs=-1)
@click.option("--out", type=click.Path(path_type=Path), default=Path("results"), show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("--force", is_flag=True, help="Run again what has a good record already.")
@click.option(
    "-y",
    "--parameters",
    help='Parameters as YAML or JSON, for example \'{"release": "0.5.9"}\'.',
)
def run(
    notebooks: Sequence[str], out: Path, jobs: int, force: bool, parameters: str | None
) -> None:
    """Run the notebooks headless (all, or those named) and write an HTML index."""
    from casebook.runs import run_suite

    given = _mapping(parameters) if parameters else None
    sys.exit(run_suite(out=out, jobs=jobs, force=force, only=notebooks, parameters=given))


def _mapping(text: str) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise click.BadParameter(f"not YAML: {error}", param_hint="--parameters") from error
    if not isinstance(found, dict):
        raise click.BadParameter("must be a mapping of names to values", param_hint="--parameters")
    return found


@cli.command()
def releases() -> None:
    """List the SGLang releases that casebook knows."""
    from casebook.catalog.releases import releases_table

    _print_frame(releases_table)


@cli.command()
def gpus() -> None:
    """List the GPU profiles that casebook can simulate."""
    from casebook.catalog.gpus import gpus_table

    _print_frame(gpus_table)


@cli.command()
def models() -> None:
    """List the models whose configuration casebook has."""
    from casebook.catalog.models import models_table

    _print_frame(models_table)


def _print_frame(make: Callable[[], pd.DataFrame]) -> None:
    with pd.option_context("display.width", None, "display.max_colwidth", 60):
        click.echo(make().to_string(index=False))


def _print_outcome(console: Console, trail: Any) -> None:
    style = "bold green" if trail.outcome.starts else "bold red"
    console.print(
        f"SGLang {escape(trail.release)} on {escape(trail.gpu)}, {escape(trail.model)}: "
        f"[{style}]{trail.outcome.kind.upper()}[/]",
        highlight=False,
    )
    console.print(trail.outcome.sentence, markup=False, highlight=False)


def _verdict_table(frame: pd.DataFrame) -> Table:
    table = Table(header_style="bold")
    for column in ("argument", "verdict", "given or default → final", "decided at"):
        table.add_column(column, overflow="fold")
    for row in frame.to_dict("records"):
        style = _COLOURS.get(row["verdict"], "")
        verdict = f"[{style}]{escape(row['verdict'])}[/]" if style else escape(row["verdict"])
        same = row["parsed"] == row["final"]
        value = row["final"] if same else f"{row['parsed']} → {row['final']}"
        message = row["SGLang's message"]
        where = escape(row["decided at"]) + (f"\n[dim]{escape(message)}[/]" if message else "")
        table.add_row(escape(row["argument"]), verdict, escape(value), where)
    return table


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; a user's mistake is one sentence on standard error and exit code 2."""
    try:
        cli.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except CasebookError as error:
        click.echo(f"casebook: {error}", err=True)
        sys.exit(USAGE_EXIT)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE_EXIT)
    except click.Abort:
        click.echo("casebook: stopped.", err=True)
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    main()
