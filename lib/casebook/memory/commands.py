"""``casebook fit-check``: will this launch fit?"""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import click

from casebook.catalog.gpus import GIB
from casebook.launch import Launch
from casebook.memory.plan import HEADROOM_BYTES, MemoryPlan, plan
from casebook.memory.units import parse_bytes


class _Bytes(click.ParamType):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


SIZE = _Bytes()


@click.command("fit-check", context_settings={"ignore_unknown_options": True})
@click.option("--release", default="0.5.11", show_default=True, help="SGLang release.")
@click.option("--gpu", default="B200", show_default=True, help="GPU profile to simulate.")
@click.option("--gpus", type=int, default=None, help="Devices of the node.")
@click.option(
    "--model", default=None, help="Model facts to use where the path is not in the catalog."
)
@click.option("--weights", type=SIZE, default=None, help="Weights of one rank, as 51.2GiB.")
@click.option("--free", type=SIZE, default=None, help="Free before the weights are loaded.")
@click.option(
    "--headroom", type=SIZE, default=HEADROOM_BYTES, help="Least to be left for graphs. [4GiB]"
)
@click.option("--json", "as_json", is_flag=True, help="The ledger as JSON.")
@click.argument("launch", nargs=-1, type=click.UNPROCESSED, required=True)
def fit_check(
    release: str,
    gpu: str,
    gpus: int | None,
    model: str | None,
    weights: int | None,
    free: int | None,
    headroom: int,
    as_json: bool,
    launch: tuple[str, ...],
) -> None:
    """Tell what each byte of a rank's memory is for, with the release's own sizing code.

    Exit status 0: it fits; 1: it does not; 2: the command itself was wrong.
    """
    words = Launch.from_text(launch[0]) if len(launch) == 1 else Launch.from_words(launch)
    made = plan(
        words,
        model,
        gpu,
        release=release,
        gpus=gpus,
        weights_bytes=weights,
        free_before_bytes=free,
        headroom_bytes=headroom,
    )
    click.echo(json.dumps(as_record(made), indent=2) if as_json else text(made))
    sys.exit(0 if made.fits else 1)


def as_record(made: MemoryPlan) -> dict[str, Any]:
    """The plan as plain data."""
    return {
        "release": made.release,
        "gpu": made.gpu,
        "model": made.model,
        "verdict": made.verdict,
        "reason": made.reason,
        "max_total_num_tokens": made.tokens,
        "max_mamba_cache_size": made.slots,
        "slots_per_request": made.slots_per_request,
        "max_running_requests": made.requests,
        "requested": made.requested,
        "limit": made.limit,
        "mem_fraction_static": made.mem_fraction_static,
        "left_bytes": made.left_bytes,
        "ledger": [
            {"part": e.part, "bytes": e.bytes, "left_bytes": e.left_bytes, "source": e.source}
            for e in made.entries
        ],
        "notes": list(made.notes),
    }


def text(made: MemoryPlan, width: int | None = None) -> str:
    """The plan for a terminal: what becomes of it, the ledger, and a bar."""
    lines = [
        f"SGLang {made.release}, {made.model} on {made.gpu}: {made.verdict.upper()}",
        f"  {made.reason}",
        "",
    ]
    part = max((len(e.part) for e in made.entries), default=4)
    bar = max(10, (width or shutil.get_terminal_size((100, 20)).columns) - part - 40)
    total = made.device.total_bytes
    for e in made.entries:
        filled = round(bar * max(e.bytes, 0) / total)
        lines.append(
            f"  {e.part:<{part}} {e.bytes / GIB:9.2f} GiB  {'█' * filled:<{bar}}"
            f" left {e.left_bytes / GIB:7.2f}"
        )
    lines.append("")
    if made.tokens is not None:
        lines.append(f"  tokens (max_total_num_tokens)    {made.tokens:,}")
    if made.slots is not None:
        lines.append(
            f"  state slots                      {made.slots:,} "
            f"({made.slots_per_request} a request)"
        )
    if made.requests is not None:
        asked = f", {made.requested} asked for" if made.requested else ""
        by = f", bounded by {made.limit}" if made.limit else ""
        lines.append(f"  requests (max_running_requests)  {made.requests:,}{asked}{by}")
    if made.mem_fraction_static is not None:
        lines.append(f"  mem_fraction_static              {made.mem_fraction_static:.4g}")
    lines += [f"  Note: {note}" for note in made.notes]
    return "\n".join(line.rstrip() for line in lines)
