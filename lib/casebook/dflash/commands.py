"""``casebook drafter-check``: the checks that apply to a drafter's files, from a shell.

Exit codes: 0 nothing failed, 1 a check failed, 2 it could not be asked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from casebook.catalog.models import model as find_model
from casebook.catalog.models import read_checkpoint
from casebook.console import launch_words
from casebook.errors import CasebookError
from casebook.launch import Launch

if TYPE_CHECKING:
    from casebook.dflash.bench import Given  # brings torch, which --help can do without
    from casebook.dflash.launched import ServeSettings

_MARKS = {"pass": ("green", "pass"), "fail": ("red", "FAIL"), "not applicable": ("white", "n/a ")}


@click.command("drafter-check")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--target", help="The target: a model of the catalog, or its checkpoint directory.")
@click.option("--release", help="SGLang release that will serve it, such as 0.5.15.post1.")
@click.option(
    "--launch",
    "script",
    type=click.Path(path_type=Path),
    help="The script, manifest or log of the server that will serve it.",
)
@click.option("--training-length", type=int, help="Tokens of the longest training sample.")
@click.option("--tokens", type=click.Path(path_type=Path), help="The store of training tokens.")
@click.option("--store", type=click.Path(path_type=Path), help="The store of hidden states.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def drafter_check(
    directory: Path,
    target: str | None,
    release: str | None,
    script: Path | None,
    training_length: int | None,
    tokens: Path | None,
    store: Path | None,
    as_json: bool,
    command: tuple[str, ...],
) -> None:
    """Check the drafter in DIRECTORY before a cluster is booked for it.

    The launch that will serve it stands in a file (--launch) or behind --, whole or only the flags
    that matter here, such as `-- --speculative-num-draft-tokens 16 --context-length 32768`. Checks
    that need the training code are not applicable here; notebook 07 runs them.
    """
    from casebook.dflash.checks import files_table
    from casebook.dflash.launched import ServeSettings, read_launch, target_of

    if script is not None and command:
        raise click.UsageError("give the launch by --launch or behind --, not both.")
    try:
        launch = Launch(())
        if script is not None:
            launch = read_launch(script, directory, release)
        elif command:
            launch = Launch.of(launch_words(command))
        given = read_given(
            directory,
            target or target_of(launch, release),
            release,
            ServeSettings.of(launch, release),
            training_length,
            tokens,
            store,
        )
        table = files_table(given)
    except CasebookError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(table.reset_index().to_dict("records"), indent=2))
    else:
        for number, row in table.iterrows():
            colour, mark = _MARKS[row["finding"]]
            click.echo(f"{click.style(mark, fg=colour)} {number:>2} {row['name']}: {row['detail']}")
    sys.exit(1 if (table["finding"] == "fail").any() else 0)


def read_given(
    directory: Path,
    target: str | None = None,
    release: str | None = None,
    launch: ServeSettings | None = None,
    training_length: int | None = None,
    tokens: Path | None = None,
    store: Path | None = None,
) -> Given:
    """A drafter directory and its surroundings, as the checks want them."""
    from casebook.dflash.bench import Given
    from casebook.dflash.checkpoint import tensor_infos
    from casebook.dflash.config import read_json
    from casebook.dflash.launched import ServeSettings
    from casebook.dflash.tokens import read_report, read_samples

    text_ids = supervised = None
    if tokens is not None:
        samples, report = read_samples(tokens), read_report(tokens)
        text_ids = frozenset(t for s in samples for t in s.input_ids.unique().tolist())
        supervised = (report.supervised_tokens, report.tokens)
        longest = max((len(s) for s in samples), default=0)
        training_length = training_length if training_length is not None else longest
    has_weights = any(directory.glob("*.safetensors"))
    return Given(
        config=read_json(directory / "config.json"),
        tensors=tensor_infos(directory) if has_weights else None,
        target=_target_config(target) if target else None,
        release=release,
        launch=launch or ServeSettings(),
        training_length=training_length,
        text_ids=text_ids,
        store=store,
        supervised=supervised,
    )


def _target_config(target: str) -> dict[str, Any]:
    path = Path(target)
    facts = read_checkpoint(path) if path.is_dir() else find_model(target)
    return facts.config()
