"""Which release resolves which model on which GPU, by asking each: ``casebook releases --check``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pandas as pd
from tqdm.auto import tqdm

from casebook.catalog.releases import load_releases
from casebook.errors import CasebookError
from casebook.resolution import pool
from casebook.resolution.trace import trace

MODELS = (
    "Qwen/Qwen3.6-27B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct",
    "Qwen/Qwen3.5-122B-A10B",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct",
    "tiiuae/Falcon-H1-7B-Instruct",
    "ibm-granite/granite-4.0-h-small",
    "LiquidAI/LFM2-8B-A1B",
    "Qwen/Qwen3-8B",
    "meta-llama/Llama-3.1-8B",
)
GPUS = ("B200", "H200", "H100", "RTX 5090", "MI300X")
STARTS = "starts"


def check_releases(
    releases: Iterable[str] | None = None,
    models: Sequence[str] = MODELS,
    gpus: Sequence[str] = GPUS,
) -> pd.DataFrame:
    """One row per release and model, one column per GPU: ``starts``, or why the launch does not.

    The launch is the plain one, ``--model-path MODEL --trust-remote-code``.
    """
    known = [r.version for r in sorted(load_releases().values())]
    chosen = known if releases is None else list(releases)
    rows: dict[tuple[str, str], dict[str, str]] = {}
    with tqdm(total=len(chosen) * len(gpus) * len(models), unit="launch") as bar:
        for release in chosen:
            for gpu in gpus:
                for model in models:
                    bar.set_description(f"{release} {gpu}")
                    rows.setdefault((release, model), {})[gpu] = _outcome(release, gpu, model)
                    bar.update()
            pool.close_all()  # the next release needs none of these children
    index = pd.MultiIndex.from_tuples(rows, names=["release", "model"])
    return pd.DataFrame(list(rows.values()), index=index)


def reasons(found: pd.DataFrame) -> Iterator[str]:
    """Totals, and each reason with the releases, GPUs and models it stands for."""
    cells = found.stack()
    started = int((cells == STARTS).sum())
    whole = found.eq(STARTS).all(axis=1)
    yield f"{started} of {len(cells)} launches start; {int(whole.sum())} of {len(found)} rows on every GPU."
    for reason, group in cells[cells != STARTS].groupby(cells):
        where = group.index.to_frame(index=False)
        names = [", ".join(dict.fromkeys(where.iloc[:, n])) for n in range(3)]
        yield f"{len(group)} × {reason}\n    releases: {names[0]}\n    models: {names[1]}\n    GPUs: {names[2]}"


def _outcome(release: str, gpu: str, model: str) -> str:
    words = ["--model-path", model, "--trust-remote-code"]
    try:
        trail = trace(words, release=release, gpu=gpu)
    except CasebookError as error:
        return str(error).splitlines()[0]
    if trail.outcome.starts:
        return STARTS
    failure = trail.outcome.failure
    if failure is None:
        return trail.outcome.sentence
    first = failure.message.strip().splitlines()[0] if failure.message.strip() else ""
    return f"{failure.type}: {first[:160]}"
