"""``casebook run`` and ``casebook site``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from casebook.runs.execute import DEFAULT_SECONDS
from casebook.runs.grid import read_assignments
from casebook.runs.suite import run_index, run_suite

_RESULTS = Path("results")


@click.command()
@click.argument("notebooks", nargs=-1)
@click.option(
    "-p",
    "--parameter",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE[,VALUE...]",
    help="A parameter; several values, and several -p, make a grid. Quote a comma that belongs to "
    "a value: -p 'releases=\"0.5.9,0.5.11\"'.",
)
@click.option(
    "-y",
    "--parameters",
    help='Parameters as YAML or JSON, for example \'{"release": "0.5.9"}\'.',
)
@click.option(
    "-f",
    "--file",
    "runs",
    type=click.Path(path_type=Path),
    help="A file of runs, YAML or TOML: a list of notebook, name, parameters, grid.",
)
@click.option("--out", type=click.Path(path_type=Path), default=_RESULTS, show_default=True)
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("--force", is_flag=True, help="Run again what has a good record already.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_SECONDS,
    show_default=True,
    help="Limit of each run.",
)
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Further tries after an infrastructure fault (a dead kernel, a lost process).",
)
@click.option("--scheduler", default="", metavar="tcp://...", help="A Dask cluster to run on.")
@click.option(
    "--store",
    default="",
    metavar="PLACE",
    help="Where the runs leave their files, if not in --out: a shared folder, s3://..., gs://...",
)
@click.option(
    "--plan",
    "plan_to",
    type=click.Path(path_type=Path),
    help="Write the runs to this manifest (JSONL) and stop.",
)
@click.option(
    "--manifest", "planned", type=click.Path(path_type=Path), help="Take the runs from a manifest."
)
@click.option(
    "--index", type=int, help="Run this line of --manifest alone (0 is the first), for array jobs."
)
def run(
    notebooks: Sequence[str],
    assignments: Sequence[str],
    parameters: str | None,
    runs: Path | None,
    out: Path,
    jobs: int,
    force: bool,
    seconds: float,
    retries: int,
    scheduler: str,
    store: str,
    plan_to: Path | None,
    planned: Path | None,
    index: int | None,
) -> None:
    """Run the notebooks headless (all, or those named) and write an HTML index.

    Exit codes: 0 all ok, 1 a cell or a check failed, 2 bad input, 3 the surroundings failed.
    """
    if planned and (notebooks or assignments or parameters or runs):
        raise click.UsageError("--manifest says already what runs; give no notebooks or parameters")
    if index is not None:
        if not planned:
            raise click.UsageError("--index needs --manifest, whose line it is")
        sys.exit(
            run_index(
                planned, index, out, force=force, seconds=seconds, retries=retries, store=store
            )
        )
    sys.exit(
        run_suite(
            out=out,
            jobs=jobs,
            force=force,
            only=notebooks,
            parameters=_mapping(parameters) if parameters else None,
            grid=read_assignments(assignments),
            runs=runs,
            planned=planned,
            plan_to=plan_to,
            seconds=seconds,
            retries=retries,
            scheduler=scheduler,
            store=store,
        )
    )


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=_RESULTS, show_default=True)
def site(out: Path) -> None:
    """Write the pages anew from the records (and cases.json) in the results folder."""
    from casebook.runs.site import write_site

    click.echo(f"Read it: {write_site(out).resolve()}")


def _mapping(text: str) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise click.BadParameter(f"not YAML: {error}", param_hint="--parameters") from error
    if not isinstance(found, dict):
        raise click.BadParameter("must be a mapping of names to values", param_hint="--parameters")
    return found
