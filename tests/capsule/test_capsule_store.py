"""How capsules are built and kept: atomically, once, repaired, listed and removed. uv is a fake."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from capsule_fakes import VERSION, Lab, ask, kill, make_lab, read_until, write_lock_for
from filelock import FileLock

from casebook.capsule import Capsule, ensure, installed, prune, remove, verify
from casebook.errors import CapsuleError, IndexUnreachableError, UnknownReleaseError


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = make_lab(tmp_path)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("casebook.capsule.uvtool.find_uv", lambda: made.uv)
    yield made


def test_a_capsule_is_built_once_and_then_found(lab: Lab) -> None:
    built = ensure(VERSION)
    assert lab.uv_runs() == 2
    assert verify(built, deep=True) == []
    assert (built.release, built.live, built.folder) == (VERSION, False, lab.capsules()[0])
    assert built.source("srt/server_args.py").startswith("page_size")
    assert ensure(f" v{VERSION} ") == built
    assert lab.uv_runs() == 2
    assert lab.unfinished() == []


def test_sglang_is_copied_and_read_only_and_dependencies_are_not_written_to(lab: Lab) -> None:
    built = ensure(VERSION)
    assert built.sglang.joinpath("__init__.py").stat().st_mode & 0o222 == 0
    assert built.site.joinpath("dep/__init__.py").stat().st_mode & 0o200
    calls = (lab.root / "uv.log").read_text().splitlines()
    assert ["--link-mode copy" in call for call in calls] == [False, True]
    assert all("--require-hashes" in call and "--no-build" in call for call in calls)


@pytest.mark.parametrize(
    "file", ["sglang/srt/server_args.py", "sglang-1.2.3.dist-info/RECORD", "../manifest.json"]
)
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_capsule_is_found_and_rebuilt(lab: Lab, file: str, damage: str) -> None:
    built = ensure(VERSION)
    victim = built.site / file
    text = victim.read_text()
    victim.unlink()
    if damage == "truncated":
        victim.write_text(text[:-20])
    assert len(verify(built)) >= 1
    assert verify(ensure(VERSION), deep=True) == []
    assert victim.read_text() == text
    assert lab.uv_runs() == 4
    assert lab.unfinished() == []


@pytest.mark.usefixtures("lab")
def test_problems_are_named() -> None:
    built = ensure(VERSION)
    (built.sglang / "srt" / "server_args.py").unlink()
    (built.sglang / "extra.py").write_text("")
    shutil.rmtree(built.site / "dep-1.0.dist-info")
    said = " ".join(verify(built))
    assert "sglang/srt/server_args.py is missing." in said
    assert "sglang/extra.py was added" in said
    assert "The distribution dep is missing." in said


@pytest.mark.usefixtures("lab")
def test_only_the_deep_check_sees_a_change_that_keeps_the_size() -> None:
    built = ensure(VERSION)
    victim = built.site / "dep" / "srt" / "server_args.py"
    victim.write_text(victim.read_text().replace("1", "2"))
    assert verify(built) == []
    assert verify(built, deep=True) == [
        "dep/srt/server_args.py does not have the hash that was installed."
    ]


def test_a_capsule_of_another_recipe_is_rebuilt(lab: Lab) -> None:
    built = ensure(VERSION)
    path = built.folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "recipe": 0}))
    assert verify(built) == ["The manifest says recipe 0, and 1 is wanted."]
    assert [row["current"] for row in installed()] == [False]
    ensure(VERSION)
    assert verify(built) == []
    assert lab.uv_runs() == 4


def test_a_killed_build_leaves_no_capsule_and_the_next_one_works(lab: Lab) -> None:
    build = ask(VERSION, lab.env, lab.uv, FAKE_UV_MODE="stop")
    uv = int(read_until(build, "pid").split()[1])
    kill(build)
    try:
        assert [p.name for p in lab.unfinished()[0].iterdir()] != []
        assert lab.capsules() == []
        assert installed() == []
        assert verify(ensure(VERSION), deep=True) == []
    finally:
        os.kill(uv, signal.SIGKILL)
    assert len(lab.capsules()) == 1


def test_remains_of_killed_builds_are_swept_but_not_those_of_living_ones(lab: Lab) -> None:
    """Whatever capsule they were meant for: a former lock's are never built again."""
    store = lab.store
    dead, living, odd = (
        store / f".unfinished-{name}" for name in ("0.1-old-aa-x_1", "0.2-new-bb-y", "z")
    )
    for folder in (dead, living, odd):
        (folder / "site").mkdir(parents=True)
    (store / ".locks").mkdir()
    with FileLock(store / ".locks" / "0.2-new-bb.lock"):
        ensure(VERSION)
        assert lab.unfinished() == [living]
    assert prune() == 0
    assert lab.unfinished() == []


def test_two_processes_at_once_build_once(lab: Lab) -> None:
    first = ask(VERSION, lab.env, lab.uv, FAKE_UV_MODE="stop")
    uv = int(read_until(first, "pid").split()[1])
    second = ask(VERSION, lab.env, lab.uv)
    read_until(second, "waiting for another process")
    os.kill(uv, signal.SIGUSR1)
    with first, second:
        assert read_until(first, "folder") == read_until(second, "folder")
    assert (first.returncode, second.returncode) == (0, 0)
    assert lab.uv_runs() == 2
    assert verify(ensure(VERSION), deep=True) == []


def test_a_process_that_waited_builds_where_the_first_one_died(lab: Lab) -> None:
    first = ask(VERSION, lab.env, lab.uv, FAKE_UV_MODE="stop")
    uv = int(read_until(first, "pid").split()[1])
    second = ask(VERSION, lab.env, lab.uv)
    read_until(second, "waiting for another process")
    kill(first)
    os.kill(uv, signal.SIGKILL)
    with second:
        read_until(second, "folder")
    assert second.returncode == 0
    assert verify(ensure(VERSION), deep=True) == []
    assert lab.unfinished() == []


@pytest.mark.parametrize(
    ("says", "kind", "sentence"),
    [
        ("error: Request failed after 3 retries", IndexUnreachableError, "UV_DEFAULT_INDEX"),
        ("Hash mismatch for `dep==1.0`", CapsuleError, "does not have the hash"),
        ("No space left on device (os error 28)", CapsuleError, "disk filled up"),
        ("kaboom", CapsuleError, "uv failed (exit code 2) while installing SGLang 1.2.3"),
    ],
)
def test_a_failed_build_is_one_sentence_and_leaves_nothing(
    lab: Lab,
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    kind: type[CapsuleError],
    sentence: str,
) -> None:
    monkeypatch.setenv("FAKE_UV_MODE", "fail")
    monkeypatch.setenv("FAKE_UV_SAYS", says)
    with pytest.raises(kind, match=sentence.replace("(", r"\(").replace(")", r"\)")):
        ensure(VERSION)
    assert lab.capsules() == lab.unfinished() == []
    monkeypatch.setenv("FAKE_UV_MODE", "")
    assert verify(ensure(VERSION)) == []


def test_a_failed_repair_keeps_the_capsule_from_being_taken_for_sound(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = ensure(VERSION)
    (built.sglang / "srt" / "server_args.py").unlink()
    monkeypatch.setenv("FAKE_UV_MODE", "short")
    with pytest.raises(CapsuleError, match=r"is not whole: sglang/srt/server_args\.py is missing"):
        ensure(VERSION)
    assert verify(built) != []
    assert lab.unfinished() == []


def test_an_interrupted_build_stops_uv_and_leaves_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("FAKE_UV_MODE", "stop")
    monkeypatch.setattr("casebook.capsule.progress.Progress.uv_line", stop)
    with pytest.raises(KeyboardInterrupt):
        ensure(VERSION)
    assert lab.capsules() == lab.unfinished() == []


def test_a_changed_lock_makes_another_capsule_and_the_old_one_is_called_outdated(
    lab: Lab,
) -> None:
    old = ensure(VERSION)
    write_lock_for(lab, "2.0")
    new = ensure(VERSION)
    assert old.folder != new.folder
    rows = {row["folder"]: row for row in installed()}
    assert {Path(f).name: r["current"] for f, r in rows.items()} == {
        old.folder.name: False,
        new.folder.name: True,
    }
    row = rows[str(new.folder)]
    assert (row["release"], row["distributions"]) == (VERSION, 2)
    assert row["files"] == sum(1 for p in new.site.rglob("*") if p.is_file())
    assert row["bytes"] == sum(p.stat().st_size for p in new.site.rglob("*") if p.is_file())
    assert prune() == 1
    assert lab.capsules() == [new.folder]
    assert prune() == 0


def test_prune_takes_folders_that_are_no_capsule(lab: Lab) -> None:
    kept = ensure(VERSION)
    (lab.store / "nonsense").mkdir()
    assert [row["folder"] for row in installed()] == [str(kept.folder)]
    assert prune() == 1
    assert lab.capsules() == [kept.folder]


def test_remove_takes_all_capsules_of_a_release(lab: Lab) -> None:
    ensure(VERSION)
    write_lock_for(lab, "2.0")
    ensure(VERSION)
    assert remove(f"v{VERSION}") == 2
    assert lab.capsules() == lab.unfinished() == installed() == []
    assert remove(VERSION) == 0
    with pytest.raises(UnknownReleaseError):
        remove("1.2")


def test_an_empty_cache_lists_nothing(lab: Lab) -> None:
    assert installed() == []
    assert prune() == 0
    assert not lab.store.exists()


def test_an_unknown_release_is_refused_with_the_nearest_names(lab: Lab) -> None:
    with pytest.raises(UnknownReleaseError, match=r"Did you mean 1\.2\.3\?.*releases\.toml"):
        ensure("1.2.4")
    assert lab.uv_runs() == 0


def test_a_cache_that_cannot_be_written_is_one_sentence(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lab.root / "file").write_text("")
    monkeypatch.setenv("CASEBOOK_CACHE", str(lab.root / "file" / "cache"))
    for call in (lambda: ensure(VERSION), installed, prune, lambda: remove(VERSION)):
        with pytest.raises(CapsuleError, match="set CASEBOOK_CACHE to another folder"):
            call()


@pytest.mark.usefixtures("lab")
def test_progress_is_one_line_while_building_and_none_afterwards(
    capfd: pytest.CaptureFixture[str],
) -> None:
    ensure(VERSION, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Capsule 1.2.3: verifying" in err
    assert "2/2 packages" in err
    ensure(VERSION, progress=True)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("lab")
def test_no_progress_is_shown_where_nobody_looks(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    ensure(VERSION)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("lab")
def test_a_source_file_that_is_not_there_is_one_sentence() -> None:
    built: Capsule = ensure(VERSION)
    with pytest.raises(CapsuleError, match=r"Did you mean server_args\.py\?"):
        built.source("srt/server_arg.py")
    with pytest.raises(CapsuleError, match="no readable source file"):
        built.source("../dep/__init__.py")
