"""Who reads and writes an argument: both styles, and what comes after resolution."""

from __future__ import annotations

from pathlib import Path

import pytest

from casebook import capsule as capsules
from casebook.capsule import Capsule
from casebook.resolution import index

RESOLVING = """\
class ServerArgs:
    def _handle(self):
        if self.tp_size > 1:
            self.page_size = 1
        else:
            self.page_size = 2
        setattr(self, "page_size", 3)
"""
HOOK = """\
def provider(view):
    declared = {}
    declared["page_size"] = 4
    if view.page_size:
        return {"page_size": 5}
    declare_resolution(view, "x", page_size=6)
    return declared
"""
RUNNER = """\
class Runner:
    def size(self, server_args):
        self.page_size = server_args.page_size
        self.page_size = max(1, 7)
        server_args.page_size = 8
        self.cache.page_size
"""


@pytest.fixture
def capsule(tmp_path: Path) -> Capsule:
    for name, text in (
        ("srt/server_args.py", RESOLVING),
        ("srt/arg_groups/hook.py", HOOK),
        ("srt/model_executor/runner.py", RUNNER),
        ("srt/test/test_x.py", "server_args.page_size = 1"),
    ):
        path = tmp_path / "sglang" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Capsule("0.0", tmp_path, Path("python"), "")


def test_writes_of_both_styles_with_their_conditions(capsule: Capsule) -> None:
    found = index.who_writes(capsule, "page_size")
    rows = [
        (r["file"].rpartition("/")[2], r["line"], r["style"], r["condition"])
        for r in found.to_dict("records")
    ]
    assert rows == [
        ("hook.py", 3, "declare", ""),
        ("hook.py", 5, "declare", "view.page_size"),
        ("hook.py", 6, "declare", ""),
        ("runner.py", 4, "own copy", ""),
        ("runner.py", 5, "assign", ""),
        ("server_args.py", 4, "assign", "self.tp_size > 1"),
        ("server_args.py", 6, "assign", "not (self.tp_size > 1)"),
        ("server_args.py", 7, "assign", ""),
    ]


def test_later_writes_stand_outside_the_resolution(capsule: Capsule) -> None:
    assert [use.line for use in index.later_writes(capsule, "page_size")] == [4, 5]


def test_reads_are_those_of_the_arguments_not_of_namesakes(capsule: Capsule) -> None:
    reads = index.who_reads(capsule, "page_size")
    assert list(reads["line"]) == [4, 3]


@pytest.mark.capsule
def test_the_real_0_5_11_sets_the_mamba_cache_size_while_it_sizes_pools() -> None:
    later = index.later_writes(capsules.ensure("0.5.11"), "max_mamba_cache_size")
    assert {use.function for use in later} == {"ModelRunnerKVCacheMixin.handle_max_mamba_cache"}
    assert [use.line for use in later] == [96, 104, 121]


@pytest.mark.capsule
def test_the_real_0_5_11_caps_the_running_requests() -> None:
    later = index.later_writes(capsules.ensure("0.5.11"), "max_running_requests")
    assert ("srt/model_executor/model_runner_kv_cache_mixin.py", 750) in {
        (use.file, use.line) for use in later
    }
