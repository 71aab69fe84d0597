"""``casebook case``: list, show, run and write cases.

Exit codes of ``case run``: 0 each cell is as its case's file says (or the file says nothing of that
release), 1 some cell is not, 2 it could not be asked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from casebook.cases import load, new, tables
from casebook.cases.batch import run_cases
from casebook.cases.run import Cell, CellState, run_case
from casebook.catalog.releases import load_releases
from casebook.catalog.releases import release as find_release
from casebook.console import by_comma, console, launch_words

_STYLES = {
    CellState.REPRODUCES: "bold red",
    CellState.MENDED: "green",
    CellState.NOT_APPLICABLE: "dim",
}


@click.group()
def case() -> None:
    """Known incidents: list them, show one, run them on releases, write a new one."""


@case.command("list")
def list_cases() -> None:
    """List the cases."""
    table = Table(header_style="bold")
    for column in ("case", "title", "seen in", "mended in"):
        table.add_column(column, overflow="fold")
    for found in load.load_cases().values():
        row = (found.name, found.title, found.seen_in or "every release", found.mended_in or "")
        table.add_row(*map(escape, row))
    console().print(table)


@case.command()
@click.argument("name")
@click.argument("release", required=False)
def show(name: str, release: str | None) -> None:
    """Show case NAME; with RELEASE also what its launch does there, with the trail behind it."""
    (found,) = load.named([name])
    lines = [
        found.title,
        f"  source:   {found.source}",
        f"  reported: {found.reported}",
        f"  seen in:  {found.seen_in or 'every release'}",
        f"  mended:   {found.mended_in or 'not known'}",
        f"  expected: {found.expected}",
        f"  happened: {found.happened}",
        f"  cause:    {found.cause}",
        f"  mend:     {found.mend}",
        *([f"  note:     {found.note}"] if found.note else []),
        f"  gpu:      {found.gpu}",
        "  launch:",
        *(f"    {x}" for x in (found.launch.script or found.launch.command or "").splitlines()),
        *(f"    {key}={value}" for key, value in found.launch.env.items()),
    ]
    if found.launch.config:
        lines += ["  configuration file:", *(f"    {x}" for x in found.launch.config.splitlines())]
    click.echo("\n".join(lines))
    if release is not None:
        cell = run_case(found, find_release(release).version)
        click.echo(f"\nOn SGLang {cell.release}: {str(cell.state).upper()}. {cell.detail}")
        click.echo(f"\n{cell.trail}")
        sys.exit(0 if cell.as_stated else 1)


@case.command()
@click.argument("names", nargs=-1)
@click.option("--releases", help="Releases, by comma (default: all).")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option(
    "--json", "out", type=click.Path(path_type=Path), help="Write the cells as JSON here."
)
@click.option("--details", is_flag=True, help="Print a line per cell that says why.")
@click.option("--trails", is_flag=True, help="Print the trail behind each cell.")
@click.option("--scheduler", default="", metavar="tcp://...", help="A Dask cluster to ask on.")
@click.option(
    "--store",
    default="",
    metavar="PLACE",
    help="Keep what has ended here (a folder, s3://..., gs://...) and ask only the rest.",
)
def run(
    names: tuple[str, ...],
    releases: str | None,
    jobs: int,
    out: Path | None,
    details: bool,
    trails: bool,
    scheduler: str,
    store: str,
) -> None:
    """Run cases (all, those named, or files) on releases and print a table.

    Exit code: 0 every cell is as its case's file says, or the file says nothing of that release;
    1 some cell is not (marked !); 2 it could not be asked; 3 the scheduler or the store failed.
    """
    chosen = by_comma(releases) if releases else list(load_releases())
    cells = run_cases(
        load.named(names),
        chosen,
        jobs=jobs,
        progress=sys.stderr.isatty(),
        scheduler=scheduler,
        store=store,
    )
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(tables.as_record(cells), indent=1, ensure_ascii=False)
        out.write_text(text + "\n", encoding="utf-8")
    _print_states(cells)
    otherwise = [cell for cell in cells if not cell.as_stated]
    for cell in cells if details or trails else otherwise:
        says = "" if cell.as_stated else f" (the file says {cell.stated})"
        click.echo(f"{cell.case.name} on {cell.release}: {cell.state}{says}. {cell.detail}")
        if trails and cell.trail:
            click.echo(f"\n{cell.trail}\n")
    counts = {state: sum(c.state is state for c in cells) for state in CellState}
    click.echo(", ".join(f"{number} {state}" for state, number in counts.items()) + ".")
    sys.exit(1 if otherwise else 0)


@case.command("new")
@click.argument("name")
@click.option("--release", default="0.5.11", show_default=True)
@click.option("--gpu", default="B200", show_default=True)
@click.option("--model", help="Model facts to use where --model-path is a path of another machine.")
@click.option("--argument", "arguments", multiple=True, metavar="ARG", help="State how ARG ends.")
@click.option("--title")
@click.option("--source", help="Where it was reported.")
@click.option("--expected")
@click.option("--happened")
@click.option("--cause")
@click.option("--mend")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("data/cases"), show_default=True
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def new_case(
    name: str,
    release: str,
    gpu: str,
    model: str | None,
    arguments: tuple[str, ...],
    folder: Path,
    command: tuple[str, ...],
    **texts: str | None,
) -> None:
    """Write case NAME from a launch behind `--`, as it goes on one release now."""
    from casebook.resolution import trace

    trail = trace(launch_words(command), release=release, gpu=gpu, model=model)
    given = {key: text for key, text in {**texts, "model": model}.items() if text}
    path = folder / f"{name}.toml"
    new.write_case(path, trail, gpu, given, arguments)
    click.echo(f"{path}: {trail.outcome.sentence}")


def _print_states(cells: list[Cell]) -> None:
    frame = tables.state_table(cells)
    table = Table(header_style="bold")
    table.add_column("case", overflow="fold")
    for release in frame.columns:
        table.add_column(str(release), no_wrap=True)
    by_place = {(c.case.name, c.release): c for c in cells}
    for name, row in frame.iterrows():
        marks = []
        for release, mark in row.items():
            style = _STYLES[by_place[str(name), str(release)].state]
            marks.append(f"[{style}]{escape(str(mark))}[/]")
        table.add_row(escape(str(name)), *marks)
    console(18 * len(frame.columns) + 60).print(table)
