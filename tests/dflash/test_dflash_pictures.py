"""The pictures state the finding, and hold for a run that has barely begun."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from casebook.dflash import pictures

CURVE = pd.DataFrame({"train_seconds": [0.0, 60.0], "tau_tokens": [1.0, 1.42]})
FLOORS = {"untrained drafter": 1.0, "repeat the last token": 1.004}


def _records(losses: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"step": np.arange(1, len(losses) + 1), "loss_nats": losses})


def test_the_learning_curve_states_loss_and_acceptance() -> None:
    left, right = pictures.learning(_records([65.0, 12.0, *[4.0] * 98]), CURVE, FLOORS, 8).axes
    assert left.get_title() == "Training loss goes from 65.0 to 4.00 nats"
    assert right.get_title() == "Held-out acceptance length reaches 1.42 of 8"
    assert left.get_yscale() == "log"
    labels = [text.get_text() for text in right.get_legend().get_texts()]
    assert labels == ["trained drafter", "untrained drafter: 1.00", "repeat the last token: 1.00"]


@pytest.mark.parametrize("losses", [[], [9.0], [9.0, 8.0, 7.0]])
def test_a_run_that_has_barely_begun(losses: list[float]) -> None:
    figure = pictures.learning(_records(losses), CURVE.iloc[:1], FLOORS, 8)
    figure.canvas.draw()  # type: ignore[attr-defined]
