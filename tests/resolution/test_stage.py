"""Which model facts a launch gets, and how names are given back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casebook.catalog.models import model as find_model
from casebook.errors import ModelConfigError, UnknownModelError
from casebook.launch import Launch
from casebook.resolution.trace import set_stage

QWEN = "Qwen/Qwen3.6-27B"


def launch(path: str) -> Launch:
    return Launch(("--model-path", path, "--tp", "2"))


def test_a_catalog_name_stays_as_typed() -> None:
    stage = set_stage(launch(QWEN))
    assert stage.launch.argv[1] == QWEN
    assert (stage.names, stage.notes, stage.model) == ((), (), QWEN)


def test_an_alias_is_resolved_and_given_back() -> None:
    stage = set_stage(launch("Qwen3.6-27B"))
    assert stage.launch.argv[1] == QWEN
    assert stage.restore({"final": [QWEN, f"at {QWEN}"]}) == {
        "final": ["Qwen3.6-27B", "at Qwen3.6-27B"]
    }


def test_a_path_of_another_machine_gets_the_facts_of_its_name() -> None:
    stage = set_stage(launch("/models/Qwen3.6-27B"))
    assert stage.launch.argv[1] == QWEN
    assert "stands in for /models/Qwen3.6-27B" in stage.notes[0]


def test_the_model_may_be_named_apart_from_the_launch() -> None:
    stage = set_stage(launch("/x/target"), QWEN)
    assert stage.launch.argv[1] == QWEN
    assert stage.model == QWEN


def test_a_local_checkpoint_is_copied_without_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASEBOOK_CACHE", str(tmp_path / "cache"))
    checkpoint = tmp_path / "mine"
    checkpoint.mkdir()
    config = {**find_model(QWEN).config(), "auto_map": {"AutoConfig": "evil.Config"}}
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "evil.py").write_text("raise SystemExit")
    stage = set_stage(launch(str(checkpoint)))
    copy = Path(stage.launch.argv[1])
    assert copy != checkpoint
    assert {p.suffix for p in copy.iterdir()} == {".json"}
    assert stage.restore(str(copy)) == str(checkpoint)


@pytest.mark.parametrize("name", ["Qwen/Qwen9", "/nowhere/else", "./nowhere"])
def test_an_unknown_model_is_one_sentence(name: str) -> None:
    with pytest.raises(UnknownModelError, match="Unknown model"):
        set_stage(launch(name))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": 3}'])
def test_a_broken_config_is_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelConfigError):
        set_stage(launch(str(tmp_path)))


def test_no_model_is_left_to_sglang() -> None:
    assert set_stage(Launch(("--tp", "2"))).launch.argv == ("--tp", "2")
    assert set_stage(launch("dummy")).launch.argv[1] == "dummy"
