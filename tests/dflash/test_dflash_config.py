from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from casebook.catalog.models import load_models
from casebook.dflash import Drafter, DrafterConfig, default_layer_ids
from casebook.dflash.checkpoint import (
    expected_shapes,
    load_drafter,
    missing_and_ignored,
    read_weights,
    save_drafter,
    tensor_infos,
)
from casebook.dflash.errors import DrafterError
from casebook.dflash.tiny import tiny_config

PUBLISHED = [m for m in load_models().values() if m.family == "DFlash drafter"]


@pytest.mark.parametrize("facts", PUBLISHED, ids=lambda m: m.short_name)
def test_published_configurations_are_read_and_written_back(facts: Any) -> None:
    config = DrafterConfig.from_json(facts.config())
    assert config.parameter_count() == facts.parameters
    assert DrafterConfig.from_json(config.to_json()) == config


def test_published_configurations_are_there() -> None:
    assert len(PUBLISHED) >= 4


@pytest.mark.parametrize(
    ("target", "draft", "wanted"),
    [
        (36, 5, (1, 9, 17, 25, 33)),
        (64, 5, (1, 16, 31, 46, 61)),
        (40, 5, (1, 10, 19, 28, 37)),
        (8, 1, (4,)),
    ],
)
def test_default_layer_ids_are_the_published_ones(
    target: int, draft: int, wanted: tuple[int, ...]
) -> None:
    assert default_layer_ids(target, draft) == wanted


def test_both_homes_of_rope_base_and_block_size_are_written() -> None:
    data = tiny_config().to_json()
    assert data["rope_theta"] == data["rope_parameters"]["rope_theta"] == 1e7
    assert data["block_size"] == data["dflash_config"]["block_size"] == 4
    assert "auto_map" not in data
    assert "partial_rotary_factor" not in json.dumps(data)


@pytest.mark.parametrize(
    ("edit", "word"),
    [
        ({"rope_theta": 1e6}, "two rope bases"),
        ({"block_size": 6}, "two block sizes"),
        ({"hidden_act": "gelu"}, "silu"),
        ({"transformer_layer_config": {}}, "speculators"),
        ({"is_causal": True}, "is_causal"),
        ({"vocab_size": 50}, "outside the vocabulary"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"num_target_layers": 6}, "last layer"),
        ({"dflash_config": {"mask_token_id": 3, "target_layer_ids": [3, 1]}}, "increasing"),
        ({"dflash_config": {"target_layer_ids": [1]}}, "mask_token_id"),
        ({"num_attention_heads": 3}, "divide"),
        ({"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_contradictions_are_refused_in_one_sentence(edit: dict[str, Any], word: str) -> None:
    with pytest.raises(DrafterError, match=word):
        DrafterConfig.from_json(tiny_config().to_json() | edit)


def test_a_missing_layer_count_is_refused() -> None:
    data = tiny_config().to_json()
    del data["num_target_layers"]
    with pytest.raises(DrafterError, match="num_target_layers"):
        DrafterConfig.from_json(data)


def test_export_is_read_back_whole(tmp_path: Path) -> None:
    drafter = Drafter(tiny_config()).initialize(2)
    save_drafter(drafter, tmp_path, torch.float32)
    again = load_drafter(tmp_path)
    assert all(
        torch.equal(a, b) for a, b in zip(drafter.parameters(), again.parameters(), strict=True)
    )
    assert len(tensor_infos(tmp_path)) == 3 + 11 * 2
    assert missing_and_ignored(expected_shapes(drafter.config), drafter.config) == ((), ())


def test_the_exported_names_are_those_of_the_published_27b_drafter() -> None:
    facts = load_models()["z-lab/Qwen3.6-27B-DFlash"]
    shapes = expected_shapes(DrafterConfig.from_json(facts.config()))
    assert len(shapes) == 58
    assert shapes["fc.weight"] == (5120, 25600)
    assert shapes["layers.4.self_attn.q_proj.weight"] == (4096, 5120)


@pytest.mark.parametrize("damage", ["cut", "prefix", "shape", "absent", "no file"])
def test_damaged_checkpoints_are_refused(tmp_path: Path, damage: str) -> None:
    from safetensors.torch import save_file

    save_drafter(Drafter(tiny_config()).initialize(2), tmp_path)
    path = tmp_path / "model.safetensors"
    weights = read_weights(tmp_path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-10])
    elif damage == "no file":
        path.unlink()
    else:
        if damage == "prefix":
            weights = {f"draft_model.{n}": t for n, t in weights.items()}
        elif damage == "shape":
            weights["norm.weight"] = torch.ones(31)
        else:
            del weights["layers.0.mlp.up_proj.weight"]
        save_file(weights, path)
    with pytest.raises(DrafterError):
        load_drafter(tmp_path)


def test_frequencies_survive_every_cast() -> None:
    drafter = Drafter(tiny_config()).to(torch.bfloat16)
    assert drafter.rotary.inv_freq(torch.device("cpu")).dtype == torch.float32
    assert not any("rotary" in name or "inv_freq" in name for name in drafter.state_dict())
