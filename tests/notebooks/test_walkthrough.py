"""The first notebook, on its defaults through nbmake (see the Makefile), here on other releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from casebook.runs import RunSpec, State, run_batch

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_incident_walkthrough.ipynb"


@pytest.mark.capsule
@pytest.mark.slow
@pytest.mark.parametrize(
    ("release", "headline", "evidence"),
    [
        ("0.5.9", "neither launch gives the error", "prefix cache is gone"),
        ("0.5.15.post1", "neither launch gives the error", "auto becomes extra_buffer"),
    ],
)
def test_the_verdict_changes_with_the_release(
    tmp_path: Path, release: str, headline: str, evidence: str
) -> None:
    spec = RunSpec.of(NOTEBOOK, {"release": release})
    (result,) = run_batch([spec], tmp_path)
    assert result.state is State.OK, result
    assert result.verdict is not None
    assert headline in result.verdict["headline"]
    assert any(evidence in sentence for sentence in result.verdict["evidence"])
