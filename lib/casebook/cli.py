"""The command line: the same functions as the notebooks use, for a shell.

Exit codes of ``explain``: 0 the launch starts, 1 SGLang does not start it, 2 it could not be asked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from casebook import __version__
from casebook.console import by_comma, console, launch_words
from casebook.errors import CasebookError, SchedulerError, StoreError

if TYPE_CHECKING:
    import pandas as pd

_COLOURS = {
    "rejected": "bold red",
    "overridden silently": "bold magenta",
    "overridden": "yellow",
    "lost": "bold red",
    "honoured": "green",
}
USAGE_EXIT, SURROUNDINGS_EXIT = 2, 3


class _Group(click.Group):
    """A group whose further commands are imported when asked for: some bring torch with them."""

    further: ClassVar[dict[str, str]] = {
        "case": "casebook.cases.commands:case",
        "check": "casebook.ladder.commands:check",
        "ladder": "casebook.ladder.commands:ladder",
        "record": "casebook.ladder.commands:record",
        "fit": "casebook.measure.commands:fit",
        "fit-check": "casebook.memory.commands:fit_check",
        "drafter-check": "casebook.dflash.commands:drafter_check",
        "run": "casebook.runs.commands:run",
        "site": "casebook.runs.commands:site",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *self.further])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.further:
            return super().get_command(ctx, cmd_name)
        module, _, name = self.further[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
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
        launch_words(command),
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
        out = console()
        _print_outcome(out, trail)
        if stories:
            for story in stories:
                out.print(str(story), highlight=False, markup=False)
        elif trail.arguments:
            out.print(_verdict_table(trail.table(everything)))
        for note in trail.notes:
            out.print(f"Note: {note}", markup=False, highlight=False)
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
@click.option("--check", is_flag=True, help="Resolve models on GPU profiles in each release.")
@click.option("--only", multiple=True, metavar="RELEASE", help="Check these releases alone.")
def releases(check: bool, only: tuple[str, ...]) -> None:
    """List the SGLang releases that casebook knows."""
    from casebook.catalog.releases import releases_table

    if not check:
        _print_frame(releases_table)
        return
    from casebook.resolution.matrix import check_releases, reasons

    found = check_releases(only or None)
    click.echo(found.to_string())
    for line in reasons(found):
        click.echo(line)


@cli.command("who-writes")
@click.argument("field")
@click.option("--release", default="0.5.11", show_default=True)
@click.option("--reads", is_flag=True, help="List who reads it instead.")
def who_writes(field: str, release: str, reads: bool) -> None:
    """List each place in a release that writes a server argument, found in its syntax trees."""
    from casebook import capsule as capsules
    from casebook.resolution import index

    ask = index.who_reads if reads else index.who_writes
    found = ask(capsules.ensure(release), field.lstrip("-").replace("-", "_"))
    if found.empty:
        click.echo(f"Nothing in SGLang {release} {'reads' if reads else 'writes'} {field}.")
        return
    table = Table(header_style="bold")
    for column in ("where", "function", "style", "if", "source line"):
        table.add_column(column, overflow="fold")
    for row in found.to_dict("records"):
        later = " (after resolution)" if row["after resolution"] else ""
        where = f"{row['file']}:{row['line']}{later}"
        cells = (where, row["function"], row["style"], row["condition"], row["text"])
        table.add_row(*map(escape, cells))
    console().print(table)


@cli.command()
@click.option("--releases", help="Releases, by comma (default: all).")
@click.option("--gpus", help="GPU profiles, by comma, on one release in place of many.")
@click.option("--models", help="Models, by comma, each in the place of the launch's own.")
@click.option("--release", default="0.5.11", show_default=True, help="With --gpus or --models.")
@click.option("--gpu", default="B200", show_default=True, help="With --releases or --models.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def compare(
    releases: str | None,
    gpus: str | None,
    models: str | None,
    release: str,
    gpu: str,
    command: tuple[str, ...],
) -> None:
    """Resolve one launch on many releases, GPUs or models; print the arguments that end otherwise."""
    from casebook.resolution import compare as comparing

    if sum(given is not None for given in (releases, gpus, models)) > 1:
        raise click.UsageError("compare over one thing: --releases, --gpus or --models")
    launch = launch_words(command)
    if gpus is not None:
        trails = comparing.over_gpus(launch, by_comma(gpus), release=release)
    elif models is not None:
        trails = comparing.over_models(launch, by_comma(models), release=release, gpu=gpu)
    else:
        chosen = by_comma(releases) if releases is not None else None
        trails = comparing.over_releases(launch, chosen, gpu=gpu)
    table = Table(header_style="bold")
    for column in ("argument", *trails):
        table.add_column(column, overflow="fold")
    table.add_row("(the launch)", *(str(t.outcome.kind) for t in trails.values()))
    for name, row in comparing.final_values(trails).iterrows():
        table.add_row(escape(str(name)), *(escape(str(value)) for value in row))
    console().print(table)


@cli.command()
@click.option("--good", required=True, help="A release in which it does not hold.")
@click.option("--bad", required=True, help="A later release in which it holds.")
@click.option("--raises", "message", help="... that SGLang raises an error beginning so.")
@click.option("--ends-as", nargs=2, metavar="ARG VALUE", help="... that ARG ends as VALUE.")
@click.option("--verdict", nargs=2, metavar="ARG VERDICT", help="... that ARG gets VERDICT.")
@click.option("--gpu", default="B200", show_default=True)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def bisect(
    good: str,
    bad: str,
    message: str | None,
    ends_as: tuple[str, str] | None,
    verdict: tuple[str, str] | None,
    gpu: str,
    command: tuple[str, ...],
) -> None:
    """Find the first release in which something holds for a launch, and the functions that changed."""
    from casebook.resolution import compare as comparing

    given = [message, ends_as, verdict]
    if sum(bool(g) for g in given) != 1:
        raise click.UsageError("say what to look for: one of --raises, --ends-as, --verdict")
    if message:
        predicate = comparing.raises(message)
    elif ends_as:
        predicate = comparing.ends_as(ends_as[0], _value(ends_as[1]))
    else:
        assert verdict is not None
        predicate = comparing.has_verdict(*verdict)
    found = comparing.bisect(launch_words(command), predicate, good=good, bad=bad, gpu=gpu)
    click.echo(str(found))
    for diff in found.diffs:
        click.echo(f"\n{diff.diff}")


def _value(text: str) -> Any:
    """A value as the command line gives it: a number, true, false, none, or text."""
    import yaml

    return None if text.lower() == "none" else yaml.safe_load(text)


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
    import pandas as pd

    with pd.option_context("display.width", None, "display.max_colwidth", 60):
        click.echo(make().to_string(index=False))


def _print_outcome(out: Console, trail: Any) -> None:
    style = "bold green" if trail.outcome.starts else "bold red"
    out.print(
        f"SGLang {escape(trail.release)} on {escape(trail.gpu)}, {escape(trail.model)}: "
        f"[{style}]{trail.outcome.kind.upper()}[/]",
        highlight=False,
    )
    out.print(trail.outcome.sentence, markup=False, highlight=False)


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
    """Run the command line; a user's mistake is one sentence on standard error and exit code 2.

    A scheduler or a store that fails is one sentence, too, and exit code 3.
    """
    try:
        cli.main(args=list(arguments) if arguments is not None else None, standalone_mode=False)
    except CasebookError as error:
        click.echo(f"casebook: {error}", err=True)
        failed = isinstance(error, SchedulerError | StoreError)
        sys.exit(SURROUNDINGS_EXIT if failed else USAGE_EXIT)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE_EXIT)
    except click.Abort:
        click.echo("casebook: stopped.", err=True)
        sys.exit(130)
    sys.exit(0)


if __name__ == "__main__":
    main()
