"""``casebook fit``: what a server's log says of its memory, and where a plan of it was off.

Exit codes: 0 the plan agrees with the log (or none was asked for), 1 a part is off by more than the
print's rounding, 2 not readable.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from casebook.catalog.gpus import GIB
from casebook.measure.errors import MeasurementError
from casebook.measure.fit import calibrate, explain, fullest_rank, residuals
from casebook.measure.model import Measurement, Server
from casebook.measure.predict import predict
from casebook.measure.read import read_log


@dataclass(frozen=True)
class FitQuestion:
    """What a plan is wanted for: the launch as given, else the arguments that the log names."""

    release: str | None
    gpu: str | None
    model: str | None
    launch: tuple[str, ...]
    arguments: Mapping[str, Any] | None
    rank: str


Predictor = Callable[[FitQuestion], Mapping[str, float]]
"""Answers with a ledger by the names of :mod:`casebook.measure.fit`."""


def fit_command(predictor: Predictor | None) -> click.Command:
    """The command, with what makes its plans; without one it shows the log's figures alone."""

    @click.command("fit")
    @click.option("--release", help="SGLang release of the server.")
    @click.option("--gpu", help="GPU profile it ran on.")
    @click.option("--model", help="Model of the catalog that stands for its --model-path.")
    @click.option(
        "--server", "number", type=int, help="Which server of the log (default: the last)."
    )
    @click.option("--rank", help="Which rank, e.g. TP0 (default: the one that shows most).")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.argument("log", type=click.Path(path_type=Path))
    @click.argument("launch", nargs=-1, type=click.UNPROCESSED)
    def fit(
        release: str | None,
        gpu: str | None,
        model: str | None,
        number: int | None,
        rank: str | None,
        as_json: bool,
        log: Path,
        launch: tuple[str, ...],
    ) -> None:
        """Calibrate a plan by LOG, and say which part of it was off. After `--`: the launch, if the log
        does not name its arguments."""
        server = _server(read_log(log), number)
        measured = _rank(server, rank)
        question = FitQuestion(release, gpu, model, launch, server.arguments, measured.rank)
        wanted = predictor is not None and (launch or server.arguments) and gpu
        ledger = predictor(question) if predictor is not None and wanted else {}
        table = residuals(ledger, measured)
        calibration = calibrate(ledger, measured)
        if as_json:
            click.echo(json.dumps(_record(server, measured, calibration, table), indent=1))
        else:
            _show(server, measured, calibration)
            for sentence in explain(table):
                click.echo(f"  off   {sentence}")
            if len(table) and bool(table["agrees"].all()):
                click.echo("The plan agrees with every figure, to the log's own rounding.")
        sys.exit(0 if bool(table["agrees"].all()) else 1)

    return fit


def _server(servers: tuple[Server, ...], number: int | None) -> Server:
    if number is None:
        return servers[-1]
    if not 1 <= number <= len(servers):
        raise MeasurementError(
            f"The log has {len(servers)} servers; --server {number} is none of them."
        )
    return servers[number - 1]


def _rank(server: Server, label: str | None) -> Measurement:
    if label is None:
        return fullest_rank(server)
    for rank in server.ranks:
        if rank.rank == label:
            return rank
    known = ", ".join(rank.rank or "(unnamed)" for rank in server.ranks) or "none"
    raise MeasurementError(f"The server has no rank {label!r}; it shows: {known}.")


def _show(server: Server, measured: Measurement, calibration: Any) -> None:
    click.echo(f"Rank {measured.rank or '0'}: {server.outcome}")
    if server.failure:
        where = f" while {server.failure.where}" if server.failure.where else ""
        click.echo(
            f"  {server.failure.kind}{where}, line {server.failure.line}: {server.failure.text}"
        )
    for name, reading in measured.figures.items():
        text = f"{reading.value / GIB:12.2f} GiB" if reading.step else f"{reading.value:12,d}    "
        mark = "  (which worker is assumed)" if name in measured.assumed else ""
        click.echo(f"  {name:26}{text}  line {reading.line}{mark}")
    for cap in measured.caps:
        asked = f" (asked: {cap.asked})" if cap.asked is not None else ""
        click.echo(f"  limited by {cap.limit}: {cap.to}{asked}, line {cap.line}")
    for name, value in vars(calibration).items():
        if isinstance(value, int):
            half = calibration.rounding.get(name, 0) / GIB
            click.echo(f"  fitted {name:26}{value / GIB:9.2f} GiB  +- {half:.3f}")


def _record(server: Server, measured: Measurement, calibration: Any, table: Any) -> dict[str, Any]:
    return {
        "rank": measured.rank,
        "outcome": server.outcome,
        "failure": None if server.failure is None else vars(server.failure),
        "figures": {n: {"value": r.value, "line": r.line} for n, r in measured.figures.items()},
        "assumed": sorted(measured.assumed),
        "calibration": {n: v for n, v in vars(calibration).items() if isinstance(v, int)},
        "residuals": json.loads(table.to_json(orient="records")),
    }


fit = fit_command(predict)
