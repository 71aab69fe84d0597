"""A published drafter through many releases: what each serves, and whether that is what was trained."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from casebook.catalog.models import ModelFacts
from casebook.dflash.bench import Given
from casebook.dflash.checkpoint import TensorInfo, expected_shapes
from casebook.dflash.checks_base import State
from casebook.dflash.checks_files import release_serves, rope_base
from casebook.dflash.config import DrafterConfig
from casebook.dflash.serving import ask


def release_table(facts: ModelFacts, releases: Sequence[str]) -> pd.DataFrame:
    """One row a release: rope base, windows, order, and the findings of checks 8 and 26.

    The tensors are those of a published checkpoint of this configuration; none is downloaded.
    """
    config = DrafterConfig.from_json(facts.config())
    tensors = {n: TensorInfo(s, "BF16") for n, s in expected_shapes(config).items()}
    rows = []
    for release in releases:
        served = ask(release, facts.config(), tensors)
        given = Given(config=facts.config(), tensors=tensors, release=release)
        found = [rope_base(given), release_serves(given)]
        rows.append(
            {
                "release": release,
                "rope base": served.rope_theta,
                "windows, tokens": ", ".join(
                    "full" if w is None else str(w) for w in served.windows
                ),
                "causal layers": sum(served.causal),
                "served as trained": all(f.state is State.PASS for f in found),
                "why not": "; ".join(f.detail for f in found if f.state is State.FAIL),
            }
        )
    return pd.DataFrame(rows).set_index("release")
