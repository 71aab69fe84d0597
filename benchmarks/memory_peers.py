"""Other estimators on the published start-ups, their error beside ours.

    python benchmarks/memory_peers.py [OUT.csv [MEASURED.csv]]

Makes an environment of its own in the cache (five packages, some 0.7 GB, the first time), gives every
peer the same configuration folders offline, and compares with what servers printed. Our own plans are
those that ``benchmarks/measured.py`` wrote to MEASURED.csv, else they are made now (minutes).

kv_bytes_per_token  K and V of a token on one rank
state_bytes         recurrent state of one sequence on one rank (the log's pool by its slots and padding)
kv_tokens           tokens of the KV cache: the peer's own where it sizes the pool (aiconfigurator); for the
                    others what their two numbers make of the bytes that the log's pools have, at the log's
                    running requests

A peer without a quantity is not counted in it; what it refused is counted and listed. ``ours`` is the plan
(:mod:`casebook.memory.measured`): its pools' bytes over the log's tokens and slots, and the tokens it sizes
from the memory that the log tells; rows without that memory it does not answer.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from casebook.catalog.models import ModelFacts, model
from casebook.measure import Published, published
from casebook.memory import measured as plans
from casebook.paths import cache_dir, data_dir

PACKAGES = (
    "aiconfigurator==0.12.0",
    "kvfit==0.3.0",
    "vramscout==0.7.0",
    "hf-mem==0.5.6",
    "chimeraforge==0.76.0",
)
QUANTITIES = ("kv_bytes_per_token", "state_bytes", "kv_tokens")
INSIDE = Path(__file__).with_name("memory_peers_inside.py")
UV = Path(sys.executable).with_name("uv")
Predict = Callable[[Published], Mapping[str, float] | None]


def environment() -> Path:
    """The Python of the peers' environment, made now if it is not there."""
    folder = cache_dir() / "peers"
    done = folder / "installed.txt"
    if not done.exists() or done.read_text() != "\n".join(PACKAGES):
        subprocess.run([UV, "venv", "--clear", "-q", folder], check=True)
        python = folder / "bin/python"
        subprocess.run([UV, "pip", "install", "-q", "--python", python, *PACKAGES], check=True)
        done.write_text("\n".join(PACKAGES))
    return folder / "bin/python"


def measured(row: Published) -> dict[str, float]:
    """What the server printed, as the three quantities, and the bytes of all its pools."""
    figures = {name: r for name, r in row.figures.items() if name not in row.rounded}
    sizes = [figures[name] for name in ("k", "v") if name in figures]
    if len(sizes) < 2:
        sizes = [figures["kv"]] if "kv" in figures else [figures["k"]] * 2 if "k" in figures else []
    found: dict[str, float] = {}
    tokens = figures.get("kv_tokens") or figures.get("max_total_num_tokens")
    if tokens and "--max-total-tokens" not in row.flags:
        found["kv_tokens"] = tokens.value
    if tokens and sizes:
        found["kv_bytes_per_token"] = sum(s.value for s in sizes) / tokens.value
    if {"state_slots", "conv_state", "ssm_state"} <= figures.keys():
        pool = figures["conv_state"].value + figures["ssm_state"].value
        found["state_bytes"] = pool / (figures["state_slots"].value + 1)
    parts = ("conv_state", "ssm_state", "intermediate_ssm", "intermediate_conv")
    pools = sum(figures[name].value for name in parts if name in figures)
    found["pool_bytes"] = pools + sum(s.value for s in sizes) if sizes and tokens else 0
    return found


def case(row: Published, facts: ModelFacts, folder: Path) -> dict[str, Any]:
    """What a peer is told of a row."""
    words = row.flags
    flags = dict(itertools.pairwise(words))
    running = row.figures.get("max_running_requests")
    lines = " ".join(row.lines)
    eight = "fp8" in flags.get("--kv-cache-dtype", "") or "float8" in lines
    config = facts.config()
    if "--mamba-ssm-dtype" in flags:
        config.get("text_config", config)["mamba_ssm_dtype"] = flags["--mamba-ssm-dtype"]
    place = folder / row.id / facts.name.rpartition("/")[2]
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(config))
    return {
        "id": row.id,
        "folder": str(place),
        "gpu": row.gpu,
        "tp": row.tp or 1,
        "fraction": float(flags.get("--mem-fraction-static", 0)) or _implied_fraction(row),
        "free_before": free.value if (free := row.figures.get("free_before_load")) else None,
        "running": running.value if running else None,
        "chunk": max(int(flags.get("--chunked-prefill-size", 8192)), 1),
        "kv_itemsize": 1 if eight else 2,
        "moe": facts.is_moe,
        "quantization": row.quantization,
    }


def _implied_fraction(row: Published) -> float | None:
    """What a default fraction must have been, where the log shows memory before, after and in pools."""
    before, after = (row.figures.get(f"free_{when}_load") for when in ("before", "after"))
    pools = measured(row)["pool_bytes"]
    if before is None or after is None or not pools:
        return None
    return round(1 - (after.value - pools) / before.value, 3)


def compare(predict: Predict | None = None) -> pd.DataFrame:
    """One row a start-up, peer and quantity: measured, predicted, error in per cent, or why not."""
    rows = {
        row.id: row for row in published() if row.layers_model and not row.launch_contradicts_log
    }
    truths = {key: measured(row) for key, row in rows.items()}
    rows = {key: row for key, row in rows.items() if truths[key].keys() & set(QUANTITIES)}
    with tempfile.TemporaryDirectory() as scratch:
        cases = [case(r, model(str(r.layers_model)), Path(scratch)) for r in rows.values()]
        done = subprocess.run(
            [environment(), INSIDE],
            input=json.dumps(cases),
            capture_output=True,
            text=True,
            check=True,
            env={"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "HOME": scratch},
        )
    answers = json.loads(done.stdout)
    if predict is not None:
        answers += [
            {"row": k, "peer": "ours", **(predict(row) or {"refused": "too few facts"})}
            for k, row in rows.items()
        ]
    records = []
    for answer in answers:
        row, truth = rows[answer["row"]], truths[answer["row"]]
        for quantity in QUANTITIES:
            if quantity not in truth:
                continue
            value = answer.get(quantity)
            if quantity == "kv_tokens" and value is None and answer["peer"] != "ours":
                value = _tokens(answer, truth, row)
            error = None if value is None else 100 * (value - truth[quantity]) / truth[quantity]
            records.append(
                {
                    "peer": answer["peer"],
                    "row": row.id,
                    "model": row.layers_model,
                    "quantity": quantity,
                    "measured": truth[quantity],
                    "predicted": value,
                    "error_percent": error,
                    "refused": answer.get("refused", "").replace(f"{scratch}/", ""),
                }
            )
    return pd.DataFrame(records)


def _tokens(answer: Mapping[str, Any], truth: Mapping[str, float], row: Published) -> float | None:
    running = row.figures.get("max_running_requests")
    per_token, state = answer.get("kv_bytes_per_token"), answer.get("state_bytes")
    if not per_token or state is None or running is None or not truth["pool_bytes"]:
        return None
    return (truth["pool_bytes"] - running.value * state) / per_token


def ours(table: pd.DataFrame) -> Predict:
    """What the plan says of the three quantities, for :func:`compare`; ``table`` is of ``plans.compare``."""
    found = {
        (row, check): part.set_index("component")["predicted"]
        for (row, check), part in table.groupby(["row", "check"])
    }

    def predict(row: Published) -> dict[str, float] | None:
        figures = plans.figures(row)
        pools = found.get((row.id, "pools"), {})
        answer: dict[str, float] = {}
        if "kv" in pools and "kv_tokens" in figures:
            answer["kv_bytes_per_token"] = pools["kv"] / figures["kv_tokens"].value
        if {"conv_state", "ssm_state"} <= set(pools.keys()) and "state_slots" in figures:
            state = pools["conv_state"] + pools["ssm_state"]
            answer["state_bytes"] = state / (figures["state_slots"].value + 1)
        division = found.get((row.id, "division"), {})
        if "kv_tokens" in division:
            answer["kv_tokens"] = division["kv_tokens"]
        return answer or None

    return predict


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Per peer and quantity: rows, answers, and how large the errors are."""
    rows = []
    for (peer, quantity), part in table.groupby(["peer", "quantity"], sort=False):
        errors = part["error_percent"].dropna().astype(float).abs()
        rows.append(
            {
                "peer": peer,
                "quantity": quantity,
                "rows": len(part),
                "answered": len(errors),
                "median_error_percent": errors.median(),
                "worst_error_percent": errors.max(),
                "within_1_percent": int((errors <= 1).sum()),
            }
        )
    return pd.DataFrame(rows)


if __name__ == "__main__":
    made = pd.read_csv(sys.argv[2]) if len(sys.argv) > 2 else plans.compare().table
    found = compare(ours(made))
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else data_dir() / "measurements/peers.csv"
    found.round({"predicted": 1, "measured": 1, "error_percent": 3}).to_csv(out, index=False)
    print(summary(found).to_string(index=False, float_format=lambda x: f"{x:.2f}"))
    refused = found[found["refused"] != ""].drop_duplicates(["peer", "row"])
    print(refused.groupby(["peer", "refused"]).size().to_string())
    print(f"written: {out}")
