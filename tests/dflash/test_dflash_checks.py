"""Every check passes on the healthy pipeline and fails on a broken one; the proof is run, not told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from casebook.catalog.models import model
from casebook.dflash import Drafter, DrafterConfig
from casebook.dflash.bench import Pipeline
from casebook.dflash.checkpoint import TensorInfo, expected_shapes, save_drafter
from casebook.dflash.checks import CHECKS, bench_table
from casebook.dflash.commands import drafter_check
from casebook.dflash.faults import FAULTS, prove
from casebook.dflash.serving import ask
from casebook.dflash.tiny import tiny_config, tiny_qwen3

pytestmark = pytest.mark.capsule


def published() -> tuple[dict[str, object], dict[str, TensorInfo]]:
    data = model("z-lab/Qwen3.6-27B-DFlash").config()
    shapes = expected_shapes(DrafterConfig.from_json(data))
    return data, {n: TensorInfo(s, "BF16") for n, s in shapes.items()}


def test_there_are_32_checks_with_a_reason_and_a_source() -> None:
    assert [c.number for c in CHECKS] == list(range(1, 33))
    assert all(c.name and c.why and c.source for c in CHECKS)
    assert len({f.name for f in FAULTS}) == len(FAULTS) >= 14


def test_quick_checks_pass_on_the_healthy_pipeline(tmp_path: Path) -> None:
    table = bench_table(
        Pipeline(), tmp_path, only=(1, 2, 3, 4, 5, 6, 7, 10, 11, 13, 14, 17, 19, 27)
    )
    assert set(table["finding"]) == {"pass"}, table.to_string()


@pytest.mark.slow
def test_every_fault_is_noticed_and_every_check_can_fail(tmp_path: Path) -> None:
    proof = prove(tmp_path, progress=False)
    assert set(proof.table().loc["healthy"]) == {"pass"}, proof.failures().to_string()
    assert proof.unnoticed() == []
    assert proof.unproven() == []
    # The finding to build on: these train to perfect accuracy, and are served badly.
    served = proof.overfitted()
    assert served.loc["healthy", "served_tau_tokens"] == 4
    for fault in (
        "labels shifted by one",
        "block positions off by one",
        "another rope base in the export",
    ):
        assert served.loc[fault, "training_accuracy_share"] > 0.999
        assert served.loc[fault, "served_tau_tokens"] < 3
    # And this one is served well all the same: only the gradient check notices it.
    quiet = "context includes the anchor's hidden state"
    assert served.loc[quiet, "served_tau_tokens"] == 4
    assert proof.table().loc[quiet, 1] == "fail"


@pytest.mark.parametrize(
    ("release", "theta", "windows"),
    [("0.5.11", 1e6, [None] * 5), ("0.5.15.post1", 1e7, [2048] * 4 + [None])],
)
def test_releases_serve_the_published_27b_drafter_as_their_code_says(
    release: str, theta: float, windows: list[int | None]
) -> None:
    """0.5.11 takes theta 1e6 for a drafter of 1e7 and knows no windows (sglang#27477)."""
    served = ask(release, *published())
    assert served.rope_theta == theta
    assert list(served.windows) == windows
    assert (served.block_size, served.mask_token_id, served.taps) == (16, 248070, 5)
    assert served.missing == served.ignored == ()


def test_a_release_ignores_unknown_names_without_a_word() -> None:
    data, tensors = published()
    served = ask("0.5.15.post1", data, {f"draft_model.{n}": i for n, i in tensors.items()})
    assert served.refused is None
    assert len(served.ignored) == 58
    assert "layers.0.self_attn.qkv_proj.weight" in served.missing


def test_a_missing_layer_count_is_refused_by_the_release_itself() -> None:
    data, tensors = published()
    data = {k: v for k, v in data.items() if k != "num_target_layers"}
    refused = ask("0.5.11", data, tensors).refused
    assert refused is not None
    assert "target_layer_ids" in refused


def exported(folder: Path, **changes: object) -> Path:
    config = tiny_config(theta=1e4)
    save_drafter(Drafter(config).initialize(1), folder)
    data = config.to_json() | changes
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def target_dir(folder: Path) -> Path:
    tiny_qwen3(tiny_config(theta=1e4)).model.save_pretrained(folder)
    return folder


def test_the_command_passes_a_sound_drafter(tmp_path: Path) -> None:
    arguments = [str(exported(tmp_path / "d")), "--target", str(target_dir(tmp_path / "t"))]
    arguments += ["--training-length", "512", "--release", "0.5.15.post1"]
    arguments += ["--", "--context-length", "256"]
    done = CliRunner().invoke(drafter_check, arguments)
    assert done.exit_code == 0, done.output
    assert "pass 26" in done.output
    assert "n/a   1" in done.output


@pytest.mark.parametrize(
    ("changes", "options", "line"),
    [
        ({"partial_rotary_factor": 0.25}, [], "FAIL  9"),
        ({"rope_theta": 1e6}, [], "FAIL  8"),
        ({}, ["--", "--speculative-num-draft-tokens", "6"], "FAIL 24"),
        ({}, ["--training-length", "512", "--", "--context-length", "900"], "FAIL 32"),
        ({}, ["--", "--speculative-dflash-block-size=6"], "FAIL 24"),
        ({}, ["--release", "0.5.23", "--", "--tp", "3"], "FAIL 26"),
        ({}, ["--release", "0.5.23", "--", "--pp-size=2"], "FAIL 26"),
        ({}, ["--target", "Qwen/Qwen3-8B"], "FAIL 12"),
        (
            {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 3, 5]}},
            ["--target", "T"],
            "FAIL 22",
        ),
    ],
)
def test_the_command_fails_an_unsound_one(
    tmp_path: Path, changes: dict[str, object], options: list[str], line: str
) -> None:
    options = [str(target_dir(tmp_path / "t")) if o == "T" else o for o in options]
    done = CliRunner().invoke(drafter_check, [str(exported(tmp_path / "d", **changes)), *options])
    assert done.exit_code == 1, done.output
    assert line in done.output


SCRIPT = """\
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --port 30001 &
TOKENS=6
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --speculative-algorithm DFLASH \\
  --speculative-draft-model-path /models/other --speculative-num-draft-tokens 4 &
python -m sglang.launch_server --model-path Qwen/Qwen3-8B --speculative-algorithm DFLASH \\
  --speculative-draft-model-path /models/d --speculative-num-draft-tokens $TOKENS \\
  --context-length 900
"""


def test_the_command_takes_the_launch_from_a_script(tmp_path: Path) -> None:
    """The server that names this drafter; its target from the catalog, its flags after expansion."""
    script = tmp_path / "serve.sh"
    script.write_text(SCRIPT)
    sound = [str(exported(tmp_path / "d")), "--training-length", "512", "--launch", str(script)]
    done = CliRunner().invoke(drafter_check, sound)
    assert done.exit_code == 1, done.output
    assert "launch 6" in done.output
    assert "serves 900 tokens, the drafter's positions end at 512" in done.output
    assert "FAIL 12" in done.output  # Qwen3-8B's hidden size is another
    done = CliRunner().invoke(drafter_check, [*sound, "--", "--tp", "2"])
    assert (done.exit_code, "not both" in done.output) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--speculative-algorithm", "NEXTN"], "serves no DFlash drafter"),
        (["--speculative-algo=eagle3"], "serves no DFlash drafter"),
        (["--context-length", "32k"], "'32k', which is no whole number"),
        (["--tp", "0"], "'0', which is no whole number"),
        (["vllm", "serve"], "does not start an SGLang server"),
    ],
)
def test_a_launch_that_serves_no_drafter_is_said(
    tmp_path: Path, words: list[str], said: str
) -> None:
    done = CliRunner().invoke(drafter_check, [str(exported(tmp_path / "d")), "--", *words])
    assert done.exit_code == 2
    assert said in done.output
    script = tmp_path / "serve.sh"
    script.write_text("python -m sglang.launch_server --model-path Qwen/Qwen3-8B\n")
    done = CliRunner().invoke(drafter_check, [str(tmp_path / "d"), "--launch", str(script)])
    assert (done.exit_code, "none with --speculative-algorithm DFLASH" in done.output) == (2, True)


def test_the_command_names_what_it_cannot_read(tmp_path: Path) -> None:
    done = CliRunner().invoke(drafter_check, [str(tmp_path)])
    assert done.exit_code == 2
    assert "config.json" in done.output
    sound = exported(tmp_path / "d")
    done = CliRunner().invoke(drafter_check, [str(sound), "--store", str(tmp_path), "--json"])
    assert done.exit_code == 1
    findings = {row["check"]: row["finding"] for row in json.loads(done.output)}
    assert findings[31] == "fail"
    assert findings[1] == "not applicable"
    assert torch.get_num_threads() == 1
