"""The capsule of the real SGLang 0.5.11, in a cache of its own: killed, shared, damaged, rebuilt."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from capsule_fakes import ask, kill, read_until

from casebook.capsule import ensure, installed, remove, verify

pytestmark = pytest.mark.capsule
VERSION = "0.5.11"


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cache")
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CASEBOOK_CACHE", str(shared_cache))
    return shared_cache


def test_a_killed_build_leaves_no_capsule_and_two_at_once_then_build_one(cache: Path) -> None:
    env = {"CASEBOOK_CACHE": str(cache)}
    killed = ask(VERSION, env)
    read_until(killed, "Installed")  # the dependencies; SGLang is yet to come
    kill(killed)
    store = cache / "capsules"
    assert list(store.glob(".unfinished-*"))
    assert not [p for p in store.iterdir() if not p.name.startswith(".")]
    assert installed() == []

    first, second = ask(VERSION, env), ask(VERSION, env)
    with first, second:
        folders = {read_until(first, "folder"), read_until(second, "folder")}
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(folders) == len(installed()) == 1
    assert not list(store.glob(".unfinished-*"))
    assert verify(ensure(VERSION)) == []


@pytest.mark.usefixtures("cache")
def test_a_damaged_capsule_is_found_and_rebuilt() -> None:
    held = ensure(VERSION)
    deleted, truncated = held.sglang / "launch_server.py", held.sglang / "srt/server_args.py"
    whole = truncated.read_bytes()
    deleted.unlink()
    truncated.unlink()  # its own file, not uv's, but read-only
    truncated.write_bytes(whole[:1000])
    assert verify(held) == [
        "sglang/launch_server.py is missing.",
        f"sglang/srt/server_args.py has 1000 bytes, and {len(whole)} were installed.",
        "The number or size of SGLang's Python files differs from the manifest.",
    ]
    assert verify(ensure(VERSION)) == []
    assert deleted.is_file()
    assert truncated.read_bytes() == whole


@pytest.mark.usefixtures("cache")
def test_a_capsule_holds_no_gpu_package_and_no_trace_of_the_build() -> None:
    held = ensure(VERSION)
    assert sorted(p.name for p in held.folder.iterdir()) == ["manifest.json", "site"]
    for name in ("torch", "triton", "flashinfer", "sgl_kernel", "torchvision"):
        assert not (held.site / name).exists()
    (row,) = installed()
    assert (row["release"], row["current"]) == (VERSION, True)


@pytest.mark.usefixtures("cache")
def test_the_deep_check_reads_dependencies_too() -> None:
    held = ensure(VERSION)
    victim = held.site / "transformers" / "__init__.py"
    text = victim.read_bytes()
    victim.unlink()  # never written to in place: the same file is in uv's cache
    victim.write_bytes(bytes(len(text)))
    assert verify(held) == []
    assert verify(held, deep=True) == [
        "transformers/__init__.py does not have the hash that was installed."
    ]
    assert remove(VERSION) == 1  # so that no other test takes it
