"""The hub cache answers Hugging Face look-ups by name, offline, and survives two writers at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from casebook.catalog import hub
from casebook.catalog.models import load_models, model, read_checkpoint
from casebook.errors import DataError

QWEN = "Qwen/Qwen3.6-27B"
NVFP4 = "nvidia/Qwen3.6-27B-NVFP4"

ASK_HUB = """
import json, os, socket, sys

def refuse(*args, **kwargs):
    raise AssertionError("a look-up reached for the network")

socket.socket.connect = socket.getaddrinfo = refuse
from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache

for name in json.loads(sys.argv[1]):
    assert json.load(open(hf_hub_download(name, "config.json")))["architectures"], name
    for file in json.loads(sys.argv[2]):
        answer = try_to_load_from_cache(name, file)
        assert isinstance(answer, str) or answer is _CACHED_NO_EXIST, (name, file, answer)
print("answered")
"""

ASK_TRANSFORMERS = """
import json, socket, sys

def refuse(*args, **kwargs):
    raise AssertionError("a look-up reached for the network")

socket.socket.connect = socket.getaddrinfo = refuse
from transformers import AutoConfig, GenerationConfig, PretrainedConfig
from transformers.utils import cached_file

names = json.loads(sys.argv[1])
for name in names:
    assert PretrainedConfig.get_config_dict(name)[0]["architectures"], name
    for file in json.loads(sys.argv[2]):
        found = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        assert (found is None) == (file != "hf_quant_config.json" or "NVFP4" not in name), file
    assert GenerationConfig.from_pretrained(name)  # 0.5.11 to 0.5.15.post1 warn if there is none
print(AutoConfig.from_pretrained(names[0]).get_text_config().num_hidden_layers)
"""


def ask(script: str, root: Path, *arguments: object) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE"))}
    environment |= {"HF_HUB_CACHE": str(root), "HF_HUB_OFFLINE": "1", "HF_HOME": str(root / "home")}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(json.dumps, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def snapshot(root: Path) -> dict[str, str]:
    return {str(p.relative_to(root)): p.read_text() for p in root.rglob("*") if p.is_file()}


def test_the_layout_is_that_of_a_hub_cache(tmp_path: Path) -> None:
    hub.materialise_hub([model(NVFP4)], tmp_path)
    repo = tmp_path / "models--nvidia--Qwen3.6-27B-NVFP4"
    commit = (repo / "refs" / "main").read_text()
    assert re.fullmatch("[0-9a-f]{40}", commit)
    config = json.loads((repo / "snapshots" / commit / "config.json").read_text())
    assert config == model(NVFP4).config()
    quant = json.loads((repo / "snapshots" / commit / "hf_quant_config.json").read_text())
    assert quant == model(NVFP4).hf_quant_config()
    absent = {p.name for p in (repo / ".no_exist" / commit).iterdir()}
    assert {"tokenizer_config.json", "params.json"} <= absent
    assert "generation_config.json" not in absent
    assert not {"config.json", "hf_quant_config.json"} & absent
    assert [p.name for p in tmp_path.iterdir()] == [repo.name]  # no scratch files left


def test_a_checkpoints_own_code_is_absent_never_written(tmp_path: Path) -> None:
    hub.materialise_hub(load_models().values(), tmp_path)
    code = list(tmp_path.rglob("*.py"))
    assert code
    assert all(".no_exist" in p.parts and p.stat().st_size == 0 for p in code)
    assert "configuration_nemotron_h.py" in {p.name for p in code}


def test_the_revision_follows_the_contents(tmp_path: Path) -> None:
    changed = model(QWEN).config() | {"vocab_size": 7}
    other = model(QWEN).model_copy(update={"config_json": json.dumps(changed)})
    assert hub.revision(other) != hub.revision(model(QWEN))
    hub.materialise_hub([model(QWEN)], tmp_path)
    hub.materialise_hub([other], tmp_path)
    repo = tmp_path / "models--Qwen--Qwen3.6-27B"
    assert (repo / "refs" / "main").read_text() == hub.revision(other)
    assert len(list((repo / "snapshots").iterdir())) == 2


def test_writing_twice_or_at_once_leaves_the_same_whole_files(tmp_path: Path) -> None:
    models = [model(QWEN), model(NVFP4)]
    hub.materialise_hub(models, tmp_path / "once")
    once = snapshot(tmp_path / "once")
    hub.materialise_hub(models, tmp_path / "once")
    assert snapshot(tmp_path / "once") == once
    with ThreadPoolExecutor(8) as pool:
        for done in [
            pool.submit(hub.materialise_hub, models, tmp_path / "many") for _ in range(16)
        ]:
            done.result()
    assert snapshot(tmp_path / "many") == once


@pytest.mark.parametrize("name", ["../evil", "a/../b", "a/b/c", "a--b/c", "/abs", "a b/c", "a/.."])
def test_a_name_that_is_no_repository_is_refused(tmp_path: Path, name: str) -> None:
    facts = model(QWEN).model_copy(update={"name": name})
    with pytest.raises(DataError, match="cannot be a hub repository"):
        hub.materialise_hub([facts], tmp_path / "root")
    assert not (tmp_path / "root").exists()


def test_the_catalogs_hub_is_built_once_and_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASEBOOK_CACHE", str(tmp_path))
    with ThreadPoolExecutor(4) as pool:
        built = {done.result() for done in [pool.submit(hub.hub_for_catalog) for _ in range(4)]}
    assert len(built) == 1
    (root,) = built
    assert root.parent == tmp_path.resolve() / "hub"
    assert [p.name for p in root.parent.iterdir()] == [root.name]
    assert len(list(root.glob("models--*"))) == len(load_models())
    monkeypatch.setattr(hub, "materialise_hub", lambda *_: pytest.fail("built a second time"))
    assert hub.hub_for_catalog() == root


def test_a_failed_build_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setenv("CASEBOOK_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "materialise_hub", fail)
    with pytest.raises(OSError, match="disk full"):
        hub.hub_for_catalog()
    assert list((tmp_path / "hub").iterdir()) == []


def test_a_stand_in_checkpoint_reads_back(tmp_path: Path) -> None:
    hub.materialise_checkpoint(model(NVFP4), tmp_path / "stand-in")
    facts = read_checkpoint(tmp_path / "stand-in")
    assert facts.config() == model(NVFP4).config()
    assert facts.hf_quant_config() == model(NVFP4).hf_quant_config()
    names = sorted(p.name for p in (tmp_path / "stand-in").iterdir())
    assert names == ["config.json", "generation_config.json", "hf_quant_config.json"]
    with pytest.raises(DataError, match="give a new directory"):
        hub.materialise_checkpoint(model(QWEN), tmp_path / "stand-in")


def test_huggingface_hub_finds_every_model_by_name_offline(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    hub.materialise_hub(load_models().values(), tmp_path)
    assert ask(ASK_HUB, tmp_path, list(load_models()), list(hub.PROBED_FILES)) == "answered"


@pytest.mark.slow
def test_transformers_finds_models_by_name_offline(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    hub.materialise_hub([model(QWEN), model(NVFP4)], tmp_path)
    assert ask(ASK_TRANSFORMERS, tmp_path, [QWEN, NVFP4], list(hub.PROBED_FILES)) == "64"
