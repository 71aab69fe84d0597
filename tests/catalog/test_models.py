"""The catalog gives back every original configuration, and says clearly what is wrong with others."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from casebook import paths
from casebook.catalog.models import (
    load_models,
    model,
    models_table,
    read_checkpoint,
    read_model_file,
)
from casebook.errors import DataError, ModelConfigError, UnknownModelError

SHARED = Path(os.environ.get("CASEBOOK_SHARED") or Path(__file__).resolve().parents[3] / "shared")
QWEN = "Qwen/Qwen3.6-27B"
COMPLETED = {"Qwen/Qwen3.6-27B-FP8", "Qwen/Qwen3.6-35B-A3B-FP8"}
"""Their originals lack the modules that are not in FP8; the catalog has them from other sources."""
MINIMAL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 2}


def originals() -> list[Path]:
    return sorted((SHARED / "models").glob("*/config.json"))


def write_checkpoint(folder: Path, config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return folder


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)  # unlike ==, tells 1 from 1.0 and from True


@pytest.mark.skipif(not originals(), reason="the collected originals (shared/models) are not here")
def test_every_original_is_in_the_catalog_and_comes_back_exactly() -> None:
    for path in originals():
        facts = model(path.parent.name.replace("__", "/"))
        config = facts.config()
        if facts.name in COMPLETED:
            assert len(config["quantization_config"].pop("modules_to_not_convert")) > 200
        assert canonical(config) == canonical(json.loads(path.read_text())), facts.name
        quant = [json.loads(p.read_text()) for p in path.parent.glob("*hf_quant_config.json")]
        assert canonical(facts.hf_quant_config()) == canonical(quant[0] if quant else None)
    assert len(load_models()) >= len(originals())


def test_qwen_27b_is_the_hybrid_it_is_known_to_be() -> None:
    facts = model(QWEN)
    text = facts.text_config()
    assert (facts.family, facts.is_moe, facts.is_hybrid) == ("GDN", False, True)
    assert (facts.layers, facts.state_layers, facts.attention_layers) == (64, 48, 16)
    assert text["layer_types"].count("linear_attention") == 48
    assert text["pad_token_id"] is None
    assert facts.architecture == "Qwen3_5ForConditionalGeneration"
    assert (facts.parameters, facts.checkpoint_bytes) == (27_781_427_952, 55_562_855_904)
    assert facts.checkpoint_bytes_exact
    # One slot of its state, as SGLang's own pools allocate it (DESIGN: 146.8125 MiB).
    ssm = text["linear_num_value_heads"] * text["linear_value_head_dim"] * 128 * 4
    conv_channels = 2 * text["linear_num_key_heads"] * 128 + text["linear_num_value_heads"] * 128
    conv = conv_channels * (text["linear_conv_kernel_dim"] - 1) * 2
    assert facts.state_layers * (ssm + conv) == 146.8125 * 2**20


@pytest.mark.parametrize(
    ("name", "family", "moe", "layers", "state", "attention"),
    [
        ("Qwen3-Next-80B-A3B-Instruct", "GDN", True, 48, 36, 12),  # from full_attention_interval
        ("Kimi-Linear-48B-A3B-Instruct", "KDA", True, 27, 20, 7),
        ("Kimi-K3", "KDA", True, 93, 69, 24),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "Mamba2", True, 52, 23, 6),
        ("NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8", "Mamba2", True, 108, 48, 12),
        ("granite-4.0-h-small", "Mamba2", True, 40, 36, 4),
        ("granite-4.0-h-1b", "Mamba2", False, 40, 36, 4),
        ("Falcon-H1-34B-Instruct", "Mamba2", False, 72, 72, 72),
        ("Jamba-v0.1", "Mamba1", True, 32, 28, 4),
        ("LFM2-700M", "short conv", False, 16, 10, 6),  # from full_attn_idxs
        ("MiniMax-Text-01", "lightning", True, 80, 70, 10),
        ("Llama-3.1-8B", "dense attention", False, 32, 0, 32),
        ("Qwen3.6-27B-DFlash", "DFlash drafter", False, 5, 0, 5),
    ],
)
def test_derived_facts(
    name: str, family: str, moe: bool, layers: int, state: int, attention: int
) -> None:
    facts = model(name)
    assert (facts.family, facts.is_moe) == (family, moe)
    assert (facts.layers, facts.state_layers, facts.attention_layers) == (layers, state, attention)


@pytest.mark.parametrize("facts", load_models().values(), ids=lambda facts: facts.short_name)
def test_every_model_is_consistent(facts: Any) -> None:
    text = facts.text_config()
    assert facts.layers == text.get("num_hidden_layers", facts.layers) > 0
    plain = ("dense attention", "MoE attention", "DFlash drafter")
    assert facts.is_hybrid == (facts.family not in plain)
    assert facts.source
    assert facts.status in ("verbatim", "reconstructed")
    if facts.checkpoint_bytes and facts.quantization is None:
        assert 1.99 < facts.checkpoint_bytes / facts.parameters < 2.01  # 16-bit checkpoints
    if facts.checkpoint_bytes:
        assert facts.checkpoint_bytes_note
    if not facts.checkpoint_bytes:
        assert not facts.checkpoint_bytes_exact
    assert "//" not in facts.source + facts.notes  # says where, but names no host
    assert facts.config() is not facts.config()  # a caller may change what it got


def test_models_are_found_by_alias_in_any_case() -> None:
    assert model("qwen3.6-27b") is model(QWEN) is model(" QWEN/qwen3.6-27B ")
    assert model("meta-llama/Meta-Llama-3.1-8B").name == "meta-llama/Llama-3.1-8B"
    assert model("Nemotron-3-Nano-30B-A3B-BF16").name.startswith("nvidia/NVIDIA-")


@pytest.mark.parametrize(
    ("asked", "near"), [("Qwen3.6-72B", "Qwen3.6-27B"), ("Qwen/Qwen3.6-72B", QWEN)]
)
def test_an_unknown_name_gets_near_names_and_a_way_out(asked: str, near: str) -> None:
    with pytest.raises(UnknownModelError) as caught:
        model(asked)
    assert near in str(caught.value)
    assert "local checkpoint directory" in str(caught.value)
    assert "data/models/<name>.toml" in str(caught.value)


def test_the_table_has_a_row_a_model_and_whole_numbers() -> None:
    table = models_table()
    assert list(table["model"]) == list(load_models())
    assert table.set_index("model").loc[QWEN, "state_layers"] == 48
    assert str(table["checkpoint_bytes"].dtype) == "Int64"
    assert table["checkpoint_bytes"].isna().any()  # unknown stays unknown
    assert models_table([]).empty


# --- files of the catalog -----------------------------------------------------------------------

MODEL_FILE = """\
name = "me/Mine"
aliases = ["Mine"]
status = "verbatim"
source = "a test"
{extra}
[compact]
runs = ["config.layer_types"]
[config]
architectures = ["MineForCausalLM"]
model_type = "mine"
layer_types = "(conv*2, full_attention)*2"
"""


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CASEBOOK_DATA", str(tmp_path))
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "mine.toml").write_text(MODEL_FILE.format(extra=""))
    return tmp_path / "models"


def test_a_file_added_by_the_user_is_found_at_once(data: Path) -> None:
    assert model("mine").layers == 6
    other = MODEL_FILE.format(extra="").replace("me/Mine", "me/Other").replace('"Mine"', "")
    (data / "other.toml").write_text(other)
    assert model("me/other").name == "me/Other"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[compact]", "[compact", "cannot be read as TOML"),
        ('status = "verbatim"', 'status = "guessed"', "status"),
        ('source = "a test"', "", "source"),
        ("{extra}", "weight = 3", "weight"),
        ("{extra}", "checkpoint_bytes = -1", "checkpoint_bytes"),
        ("(conv*2,", "(conv*2", "not a model description"),
        ("config.layer_types", "config.missing", "config.missing"),
        ("[config]", "[configuration]", "config"),
        ('architectures = ["MineForCausalLM"]', "", "architectures"),
    ],
)
def test_a_faulty_file_is_named_with_its_fault(
    data: Path, before: str, after: str, said: str
) -> None:
    text = MODEL_FILE.replace(before, after).format(extra="")
    assert text != MODEL_FILE.format(extra="")
    path = data / "mine.toml"
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(said)) as caught:
        read_model_file(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_files_cannot_claim_one_name(data: Path) -> None:
    (data / "copy.toml").write_text(MODEL_FILE.format(extra=""))
    with pytest.raises(DataError, match=r"mine\.toml uses the model name"):
        load_models()


def test_a_link_that_leads_nowhere_is_named(data: Path) -> None:
    (data / ".#mine.toml").symlink_to("user@host.1234")  # what Emacs leaves while one edits
    with pytest.raises(DataError, match=r"Cannot read .*\.#mine\.toml"):
        load_models()


def test_an_empty_catalog_is_a_data_error(data: Path) -> None:
    (data / "mine.toml").unlink()
    with pytest.raises(DataError, match="No model files"):
        load_models()


# --- local checkpoints --------------------------------------------------------------------------


def test_a_checkpoint_directory_gives_the_same_facts(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "my-qwen", model(QWEN).config())
    facts = read_checkpoint(folder)
    assert facts.config() == model(QWEN).config()
    assert (facts.name, facts.status, facts.family) == ("my-qwen", "local", "GDN")
    assert facts.directory == folder.resolve()
    assert (facts.checkpoint_bytes, facts.checkpoint_bytes_exact) == (None, False)


def test_safetensors_are_summed_and_hf_quant_config_is_read(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", MINIMAL)
    for number, size in enumerate((100, 23), start=1):
        (folder / f"model-0000{number}-of-00002.safetensors").write_bytes(b"\0" * size)
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    facts = read_checkpoint(folder)
    assert (facts.checkpoint_bytes, facts.checkpoint_bytes_exact) == (123, True)
    assert facts.quantization == "modelopt FP8"


def test_an_architecture_nobody_knows_is_no_error(tmp_path: Path) -> None:
    odd = {"architectures": ["ZebraForCausalLM"], "model_type": "zebra"}
    assert read_checkpoint(write_checkpoint(tmp_path / "c", odd)).layers == 0


@pytest.mark.parametrize(
    "odd",
    [
        {"num_hidden_layers": "many", "num_experts": "all"},
        {"num_hidden_layers": float("inf"), "full_attention_interval": 0},
        {"text_config": None, "linear_attn_config": {"kda_layers": [None, "1"]}},
        {"layer_types": [1, None, {}], "quantization_config": 3},
        {"hybrid_override_pattern": ["M"], "attn_type_list": "01", "num_hidden_layers": -4},
        {"quantization_config": {"quant_method": {"a": 1}}, "max_position_embeddings": True},
    ],
)
def test_odd_values_do_not_break_the_table(tmp_path: Path, odd: dict[str, Any]) -> None:
    facts = read_checkpoint(write_checkpoint(tmp_path / "c", MINIMAL | odd))
    assert len(models_table([facts])) == 1


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("", "ends too early at line 1, column 1"),
        ('{\n  "architectures": ["A"],\n  "model_ty', "line 3, column 3"),
        ('{"architectures": ["A"],', "ends too early at line 1, column 25"),
        ('{"a": 1,}', "is not valid JSON at line 1, column"),
        ("[1, 2]", "a JSON list where an object is needed"),
        ("null", "a JSON null where an object is needed"),
        ('"text"', "a JSON string where an object is needed"),
        ("[" * 100_000, "config.json"),
        ('{"a": ' + "9" * 5000 + "}", "cannot be read"),
        ({"model_type": "llama"}, '"architectures"'),
        ({"architectures": [], "model_type": "llama"}, '"architectures"'),
        ({"architectures": "LlamaForCausalLM", "model_type": "llama"}, '"architectures"'),
        ({"architectures": [1], "model_type": "llama"}, '"architectures"'),
        ({"architectures": ["LlamaForCausalLM"]}, '"model_type"'),
        ({"architectures": ["LlamaForCausalLM"], "model_type": None}, '"model_type"'),
    ],
)
def test_a_faulty_config_is_one_clear_sentence(tmp_path: Path, config: Any, said: str) -> None:
    folder = write_checkpoint(tmp_path / "c", config)
    with pytest.raises(ModelConfigError) as caught:
        read_checkpoint(folder)
    message = str(caught.value)
    assert said in message
    assert str(folder / "config.json") in message
    assert "\n" not in message


def test_missing_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="does not exist"):
        read_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ModelConfigError, match=r"There is no config\.json"):
        read_checkpoint(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelConfigError, match="cannot be read"):
        read_checkpoint(tmp_path)
    with pytest.raises(ModelConfigError, match="is not a directory"):
        read_checkpoint(Path(__file__))


def test_binary_and_broken_quant_files_are_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "c", MINIMAL)
    (folder / "hf_quant_config.json").write_text("{")
    with pytest.raises(ModelConfigError, match=r"hf_quant_config\.json ends too early"):
        read_checkpoint(folder)
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelConfigError, match="not UTF-8"):
        read_checkpoint(folder)


def test_the_catalog_lies_in_the_data_folder() -> None:
    assert (paths.data_dir() / "models" / "qwen3.6-27b.toml").is_file()
