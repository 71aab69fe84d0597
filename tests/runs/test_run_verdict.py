"""A verdict shows itself in the notebook and reaches the runner as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from casebook.runs import verdict
from casebook.runs.files import read_json, write_json


def test_file_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "deep" / "verdict.json"
    monkeypatch.setenv(verdict.FILE_VARIABLE, str(target))
    made = verdict.record(
        "PASS", evidence=["a", "b"], ruled_out="c", next_step="d", headline="It fits."
    )
    assert verdict.Verdict.from_json(read_json(target)) == made
    assert made.evidence == ("a", "b")
    assert made.ruled_out == ("c",)
    assert [p.name for p in target.parent.iterdir()] == ["verdict.json"]


def test_without_a_runner_no_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(verdict.FILE_VARIABLE, raising=False)
    monkeypatch.delenv(verdict.STRICT_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert verdict.record("FAIL").headline == "The check failed."
    assert not list(tmp_path.iterdir())


def test_a_fail_is_an_error_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(verdict.STRICT_VARIABLE, "1")
    verdict.record("INCONCLUSIVE")
    with pytest.raises(AssertionError, match="They differ"):
        verdict.record("FAIL", headline="They differ.")


def test_callout_escapes_and_marks_code() -> None:
    shown = verdict.record("INCONCLUSIVE", evidence="`a<b`", headline="<script>")._repr_html_()
    assert "INCONCLUSIVE" in shown
    assert "<code>a&lt;b</code>" in shown
    assert "<script>" not in shown


def test_only_three_states() -> None:
    with pytest.raises(ValueError, match="PASS, FAIL, INCONCLUSIVE"):
        verdict.record("MAYBE")


@pytest.mark.parametrize("data", [None, {}, {"state": "GOOD"}, {"state": "PASS"}])
def test_a_file_that_is_no_verdict(data: object) -> None:
    with pytest.raises(ValueError):
        verdict.Verdict.from_json(data)


def test_a_half_written_file_is_never_seen(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    write_json(target, {"a": 1})
    with pytest.raises(TypeError):
        write_json(target, {"a": object()})
    assert read_json(target) == {"a": 1}
