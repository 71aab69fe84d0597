"""Every published start-up against the plan of the same launch, all rows.

    python benchmarks/measured.py [OUT.csv]

Some twenty releases and devices, each a warm child of its own: minutes. Prints the figures that issue 5
asks for: how many rows have their state pools to the log's rounding, how far the tokens are off where the
log tells the memory behind the weights and where it does not, and every figure that is beyond.
"""

from __future__ import annotations

import sys
import time

import pandas as pd

from casebook.memory.measured import STATE, WITH_LOAD, WITHOUT_LOAD, Comparison, compare


def summary(found: Comparison) -> str:
    """The figures, one a line."""
    table = found.table
    state = table[(table["check"] == "pools") & table["component"].isin(STATE)]
    lines = [
        f"{len(table)} figures of {table['row'].nunique()} rows on {table['release'].nunique()} releases, "
        f"{table['gpu'].nunique()} devices; {len(found.left_out)} rows left out",
        f"state pools: {state['row'].nunique()} rows, {len(state)} figures; "
        f"{100 * found.share_within(*STATE):.1f} % of the rows equal to 0.01 GB",
    ]
    for tolerance, text in ((WITH_LOAD, "with"), (WITHOUT_LOAD, "without")):
        part = table[
            (table["check"] == "division")
            & (table["component"] == "kv_tokens")
            & (table["tolerance_percent"] == tolerance)
        ]
        lines.append(
            f"KV tokens {text} memory after load: {len(part)} rows, {int(part['within'].sum())} within "
            f"{tolerance:.0f} %, median {part['percent'].abs().median():.2f} %, "
            f"worst {part['percent'].abs().max():.2f} %"
        )
    lines.append(f"beyond without an explanation: {len(found.unexplained)}")
    return "\n".join(lines)


if __name__ == "__main__":
    start = time.monotonic()
    result = compare()
    out = sys.argv[1] if len(sys.argv) > 1 else "measured.csv"
    result.table.to_csv(out, index=False)
    beyond = result.table[~result.table["within"].astype(bool)]
    with pd.option_context("display.width", 200, "display.max_colwidth", 100):
        shown = ["row", "check", "component", "percent", "release", "explanation"]
        print(beyond[shown].to_string(index=False))
        print(result.left_out.to_string(index=False))
    print(summary(result))
    print(f"{time.monotonic() - start:.0f} s; written: {out}")
