"""What is said of a ``--config`` file, held against the merger and the parser of SGLang itself.

The merger's words are those that the release's own parser was given in its capsule; the findings speak
of the same launch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casebook import capsule as capsules
from casebook.catalog.gpus import gpu
from casebook.launch.config_file import read_config
from casebook.launch.source import Source
from casebook.resolution import pool

RELEASES = ("0.5.11", "0.5.20")
STOP = "--no-such-option-at-all"
MODEL = "model-path: Qwen/Qwen3-8B\n"

# The file, the rules that speak of it, whether the parser refuses the words, what arrives (argument: value).
FILES: dict[str, tuple[str, set[str], bool, dict[str, Any]]] = {
    "plain": (MODEL + "page-size: 64\n", set(), False, {"page_size": 64}),
    "a switch set": (
        MODEL + "disable-radix-cache: true\n",
        set(),
        False,
        {"disable_radix_cache": True},
    ),
    "a switch unset": (
        MODEL + "disable-radix-cache: false\n",
        {"config-false-dropped"},
        False,
        {"disable_radix_cache": False},
    ),
    "underscores": (
        MODEL + "disable_radix_cache: true\n",
        {"config-underscore-key"},
        True,
        {},
    ),
    "underscores, with a value": (MODEL + "page_size: 64\n", {"config-underscore-key"}, True, {}),
    "a key twice": (
        MODEL + "page-size: 1\npage-size: 64\n",
        {"config-duplicate-key"},
        False,
        {"page_size": 64},
    ),
    "null": (MODEL + "kv-cache-dtype: null\n", {"config-null"}, True, {}),
    "no such key": (MODEL + "no-such-option: 1\n", {"config-unknown-key"}, True, {}),
    "a list": (
        MODEL + "lora-target-modules: [q_proj, k_proj]\nenable-lora: true\nmax-lora-rank: 16\n",
        set(),
        False,
        {"max_lora_rank": 16},
    ),
    "an empty list": (MODEL + "served-model-name: x\ncuda-graph-bs: []\n", set(), False, {}),
    "a quoted number": (MODEL + 'page-size: "64"\n', set(), False, {"page_size": 64}),
    "yes is true": (MODEL + "enable-metrics: yes\n", set(), False, {"enable_metrics": True}),
    "on, and off": (
        MODEL + "enable-metrics: on\ndisable-radix-cache: off\n",
        {"config-false-dropped"},
        False,
        {"enable_metrics": True, "disable_radix_cache": False},
    ),
    "an octal number": (MODEL + "page-size: 0100\n", set(), False, {"page_size": 64}),
    "numbers as Python writes them": (
        MODEL + "mem-fraction-static: 0.80\nchunked-prefill-size: 8_192\n",
        set(),
        False,
        {"mem_fraction_static": 0.8, "chunked_prefill_size": 8192},
    ),
    "a short name": (MODEL + "tp: 2\n", set(), False, {"tp_size": 2}),
    "JSON": (
        MODEL + "json-model-override-args: '{\"a\": 1}'\n",
        set(),
        False,
        {"json_model_override_args": '{"a": 1}'},
    ),
    "an abbreviation": (MODEL + "disable-radix: true\n", {"abbreviated-flag"}, True, {}),
}


def ask(release: str, path: Path) -> dict[str, Any]:
    """What the release's own merger and parser make of the file."""
    worker = pool.worker(capsules.ensure(release), gpu("B200").as_device(), {})
    last = [] if release == RELEASES[0] else [STOP]  # the words are enough, and soon told
    return worker.call("resolve", argv=["--config", str(path), *last], env={}, cwd=str(path.parent))


@pytest.mark.capsule
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", sorted(FILES))
def test_the_words_are_the_mergers_own(tmp_path: Path, name: str, release: str) -> None:
    text, rules, refused, arrives = FILES[name]
    path = tmp_path / "c.yaml"
    path.write_text(text, "utf-8")
    real = ask(release, path)
    found = read_config(Source("c.yaml", text), release)
    line = real["command_line"]
    assert list(found.launches[0].launch.argv) == [w for w in line["words"] if w != STOP]
    assert {r for r in found.rules if r.startswith("config-")} == {
        r for r in rules if r.startswith("config-")
    }
    assert rules <= set(found.rules)
    if STOP in line["words"]:
        refused = refused or line["refusal"] == f"unrecognized arguments: {STOP}"
        assert refused, line
        return
    assert bool(line.get("refusal")) is refused, line
    for argument, value in arrives.items():
        assert real["initial"][argument] == value


@pytest.mark.capsule
@pytest.mark.parametrize("release", RELEASES)
def test_the_merger_stops_at_one_of_a_pair(tmp_path: Path, release: str) -> None:
    text = MODEL + "lora-strict-loading: true\n"
    path = tmp_path / "c.yaml"
    path.write_text(text, "utf-8")
    outcome = ask(release, path)["outcome"]
    assert outcome["message"].startswith("Unsupported config option 'lora_strict_loading'")
    assert "config-option-pair" in read_config(Source("c.yaml", text), release).rules
