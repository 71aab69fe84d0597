"""Lock files: what they hold, how they are read and written, and what is said of a bad one."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.markers import Marker
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from casebook.capsule import lock as locks
from casebook.capsule.lockfile import PYTHONS, Entry, Lock, lock_path, parse_lock, read_lock
from casebook.catalog.releases import load_dropped, load_releases
from casebook.errors import CapsuleError
from casebook.paths import data_dir

RELEASES = list(load_releases())
HASH = hashlib.sha256(b"x").hexdigest()

quick = settings(deadline=None, max_examples=50)
entries = st.builds(
    Entry,
    name=st.from_regex(r"[a-z0-9]{1,9}(-[a-z0-9]{1,9}){0,2}", fullmatch=True),
    version=st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,4}){0,3}(rc1|\.post2)?(\+cpu)?", fullmatch=True),
    marker=st.sampled_from(
        ["", "sys_platform == 'darwin'", "python_version < '3.12' and platform_machine != 'x'"]
    ),
    hashes=st.lists(
        st.binary(max_size=4).map(lambda b: hashlib.sha256(b).hexdigest()), min_size=1, max_size=4
    ).map(tuple),
)


@quick
@given(st.lists(entries, max_size=8))
def test_what_is_written_is_read_back(listed: list[Entry]) -> None:
    text = "# a header\n" + "".join(entry.render() for entry in listed)
    assert list(parse_lock(text, Path("x.txt"))) == listed


@quick
@given(st.lists(entries, max_size=8), entries)
def test_a_lock_splits_into_one_distribution_and_the_others(
    listed: list[Entry], one: Entry
) -> None:
    lock = Lock(Path("x.txt"), "", (*listed, one))
    parts = lock.render(only=one.name) + lock.render(without=one.name)
    assert sorted(parts.splitlines()) == sorted(lock.render().splitlines())
    assert {e.name for e in parse_lock(lock.render(only=one.name), Path("x.txt"))} == {one.name}


def test_every_release_has_a_lock_and_every_lock_a_release() -> None:
    found = {path.stem for path in (data_dir() / "capsules").glob("*.txt")}
    assert found == set(RELEASES)


@pytest.mark.parametrize("version", RELEASES)
def test_a_lock_holds_its_sglang_with_hashes_and_nothing_dropped(version: str) -> None:
    lock = read_lock(version)
    pinned = {(e.name, e.version) for e in lock.entries}
    assert ("sglang", version) in pinned
    assert {name for name, _ in pinned}.isdisjoint(d.name for d in load_dropped())
    assert all(e.hashes for e in lock.entries)
    assert all(Version(e.version).local is None for e in lock.entries)
    text = lock_path(version).read_text()
    assert "://" not in text
    assert f"as of {load_releases()[version].exclude_newer} (UTC)" in text.splitlines()[0]


@pytest.mark.parametrize("version", RELEASES)
def test_a_lock_installs_no_distribution_twice(version: str) -> None:
    for environment in locks._environments():
        names = [
            e.name
            for e in read_lock(version).entries
            if not e.marker or Marker(e.marker).evaluate(environment)
        ]
        assert len(names) == len(set(names))


def test_the_digest_is_of_the_text_and_count_is_of_this_platform() -> None:
    lock = read_lock("0.5.11")
    assert lock.sha256 == hashlib.sha256(lock.path.read_bytes()).hexdigest()
    assert 100 < lock.count() <= len(lock.entries)


@pytest.fixture
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CASEBOOK_DATA", str(tmp_path))
    (tmp_path / "capsules").mkdir()
    return tmp_path / "capsules"


@pytest.mark.usefixtures("own_locks")
def test_a_missing_lock_says_how_to_write_it() -> None:
    with pytest.raises(CapsuleError, match=r"no lock at .*casebook\.capsule\.lock 0\.5\.11`"):
        read_lock("0.5.11")


@pytest.mark.parametrize(
    "line",
    [
        "sglang==0.5.11",
        f"sglang>=0.5.11 --hash=sha256:{HASH}",
        "sglang==0.5.11 --hash=sha256:beef",
        f"sglang==0.5.11 --hash=sha256:{HASH} --hash=sha256:",
        f"sglang==0.5.11 ; nonsense --hash=sha256:{HASH}",
        f"-e . --hash=sha256:{HASH}",
        "--index-url https://example.invalid/simple",
    ],
)
def test_a_line_that_pins_nothing_is_refused(own_locks: Path, line: str) -> None:
    (own_locks / "0.5.11.txt").write_text(line + "\n")
    with pytest.raises(CapsuleError, match="not a pinned requirement with hashes"):
        read_lock("0.5.11")


def test_the_lock_of_another_release_is_refused(own_locks: Path) -> None:
    shutil.copy(Path(__file__).parents[2] / "data/capsules/0.5.10.txt", own_locks / "0.5.11.txt")
    with pytest.raises(CapsuleError, match=r"does not lock sglang==0\.5\.11"):
        read_lock("0.5.11")


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_an_unreadable_lock_is_one_sentence(own_locks: Path, content: bytes | None) -> None:
    path = own_locks / "0.5.11.txt"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(CapsuleError, match="cannot be read"):
        read_lock("0.5.11")


@pytest.mark.parametrize(
    ("wheel", "ours"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1-cp313-cp313-manylinux_2_28_aarch64.whl", True),
        ("a-1-cp38-abi3-manylinux2014_x86_64.whl", True),
        ("a-1-cp312-cp312-macosx_11_0_arm64.whl", True),
        ("a-1-cp310-cp310-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp314-cp314-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp313-cp313t-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp314-abi3-manylinux2014_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-macosx_10_9_x86_64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
        ("a-1-py2-none-any.whl", False),
    ],
)
def test_only_wheels_for_our_platforms_are_locked(wheel: str, ours: bool) -> None:
    assert any(locks._is_ours(tag) for tag in parse_wheel_filename(wheel)[3]) is ours


def resolved(marker: str = "", *wheels: str) -> dict[str, object]:
    files = [
        {"url": f"https://x.invalid/{w}", "hashes": {"sha256": str(i)}}
        for i, w in enumerate(wheels)
    ]
    return {"name": "A_b", "version": "1", "marker": marker, "wheels": files}


def test_a_resolved_package_becomes_an_entry_without_the_floor_in_its_marker() -> None:
    package = resolved(
        "python_full_version >= '3.11' and sys_platform == 'darwin'",
        "A_b-1-py3-none-any.whl",
        "A_b-1-cp311-cp311-win_amd64.whl",
    )
    assert locks._entry(package) == Entry("a-b", "1", "sys_platform == 'darwin'", ("0",))


def test_a_package_for_no_platform_of_ours_is_left_out() -> None:
    assert locks._entry(resolved("sys_platform == 'win32'", "A_b-1-py3-none-any.whl")) is None


def test_a_package_without_a_wheel_cannot_be_locked() -> None:
    with pytest.raises(CapsuleError, match=r"a-b 1 has no wheel .*dropped\.toml"):
        locks._entry(resolved("", "A_b-1-cp311-cp311-win_amd64.whl"))


def test_the_pythons_of_the_locks_are_those_their_headers_name() -> None:
    span = f"{PYTHONS[0][0]}.{PYTHONS[0][1]} to {PYTHONS[-1][0]}.{PYTHONS[-1][1]}"
    assert f"CPython {span}" in lock_path("0.5.11").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "Name the releases to lock, or give --all."),
        (["--all", "0.5.11"], "Name the releases to lock, or give --all."),
        (["0.5.111"], "Unknown SGLang release '0.5.111'"),
    ],
)
def test_the_lock_command_refuses_what_it_cannot_do(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(locks.main, arguments)
    assert result.exit_code == 2
    assert sentence in result.output
