"""The releases that the lab knows, and what is said of a bad file of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casebook.catalog.releases import (
    Release,
    load_dropped,
    load_releases,
    release,
    releases_table,
)
from casebook.errors import DataError, UnknownReleaseError

ALL = [
    "0.5.8.post1",
    "0.5.9",
    "0.5.10",
    "0.5.10.post1",
    "0.5.11",
    "0.5.12",
    "0.5.12.post1",
    "0.5.13",
    "0.5.13.post1",
    "0.5.14",
    "0.5.15",
    "0.5.15.post1",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.21",
    "0.5.22",
    "0.5.23",
]

GOOD = """
schema = 1
source = "a test"
[[release]]
version = "1.0"
uploaded = 2026-01-01
requires_python = ">=3.10"
wheel = "any"
exclude_newer = 2026-01-06
"""


def test_all_releases_are_known_oldest_first() -> None:
    assert list(load_releases()) == ALL
    uploaded = [r.uploaded for r in load_releases().values()]
    assert uploaded == sorted(uploaded)


def test_releases_order_as_versions_and_not_as_text() -> None:
    assert release("0.5.9") < release("0.5.10") < release("0.5.10.post1") < release("0.5.11")
    assert release("0.5.23") >= release("0.5.9")
    assert max(load_releases().values()).version == "0.5.23"
    with pytest.raises(TypeError):
        assert release("0.5.9") < "0.5.10"  # type: ignore[operator]


def test_every_release_has_its_facts() -> None:
    for found in load_releases().values():
        assert 0 < (found.exclude_newer - found.uploaded).days <= 14
        assert found.source
        assert found.supports((3, 11))


@pytest.mark.parametrize("spelling", ["0.5.11", "v0.5.11", " 0.5.11\n", "0.5.11.0.post1"])
def test_a_release_by_any_spelling_of_its_version(spelling: str) -> None:
    if spelling.endswith("post1"):
        with pytest.raises(UnknownReleaseError):
            release(spelling)
    else:
        assert release(spelling) is load_releases()["0.5.11"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("0.5.111", "0.5.11"), ("0.5.10-post1x", "0.5.10.post1"), ("0.5.7", "0.5.1")],
)
def test_an_unknown_release_names_the_nearest_and_says_what_to_do(name: str, near: str) -> None:
    with pytest.raises(UnknownReleaseError, match="Did you mean") as caught:
        release(name)
    message = str(caught.value)
    assert near in message
    assert repr(name) in message
    assert "data/releases.toml" in message
    assert "\n" not in message


def test_a_name_like_no_release_gets_no_guess() -> None:
    with pytest.raises(UnknownReleaseError, match="append a") as caught:
        release("latest")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("version", "python", "supported"),
    [
        ("0.5.9", (3, 9), False),
        ("0.5.9", (3, 11), True),
        ("0.5.9", (3, 13), True),
        ("0.5.11", (3, 9), False),
        ("0.5.11", (3, 12), True),
        ("0.5.11", (3, 99), False),  # no wheel for it
    ],
)
def test_supports(version: str, python: tuple[int, int], supported: bool) -> None:
    assert release(version).supports(python) is supported


def test_the_table_has_a_row_per_release() -> None:
    table = releases_table()
    assert list(table.index) == ALL
    assert table.loc["0.5.9", "wheel"] == "any"


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CASEBOOK_DATA", str(tmp_path))
    (tmp_path / "capsules").mkdir()
    return tmp_path


def test_a_good_file_and_an_edit_of_it_are_seen(data: Path) -> None:
    path = data / "releases.toml"
    path.write_text(GOOD)
    assert list(load_releases()) == ["1.0"]
    assert isinstance(release("1.0"), Release)
    path.write_text(GOOD.replace('"1.0"', '"2.0"'))
    # Not left to the clock's resolution: an edit has a later time than the file had.
    stat = path.stat()
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1_000_000))
    assert list(load_releases()) == ["2.0"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("schema = 1", "schema = 2", "must say `schema = 1`, not 2"),
        ("schema = 1", "", "must say `schema = 1`, not None"),
        ("schema = 1", "schema =", "cannot be read as TOML"),
        ("[[release]]", "[release]", "must hold [[release]] blocks"),
        (GOOD, "schema = 1\nrelease = []\n", "must hold [[release]] blocks"),
        ('version = "1.0"', 'version = "one"', "'one' is not a version"),
        ('version = "1.0"', "", "number 1 (without a version) is malformed: version"),
        ('wheel = "any"', 'wheel = "win"', "number 1 (1.0) is malformed: wheel"),
        ('wheel = "any"', 'wheel = "any"\nextra = 1', "is malformed: extra"),
        ('wheel = "any"', 'wheel = "any"\npythons = ["3.11"]', "must list pythons if, and only if"),
        ('wheel = "any"', 'wheel = "manylinux_2_34"', "must list pythons if, and only if"),
        ('">=3.10"', '"3.10 or so"', "is not a version range"),
        ("2026-01-01", '"soon"', "is malformed: uploaded"),
        ("2026-01-06", "2026-01-01", "has exclude_newer not after uploaded"),
        (GOOD, GOOD + GOOD.partition('"a test"')[2], "number 2 (1.0) repeats a version"),
    ],
)
def test_a_malformed_file_is_one_sentence_with_its_place(
    data: Path, old: str, new: str, sentence: str
) -> None:
    (data / "releases.toml").write_text(GOOD.replace(old, new))
    with pytest.raises(DataError) as caught:
        load_releases()
    assert sentence in str(caught.value)
    assert str(data / "releases.toml") in str(caught.value)


@pytest.mark.usefixtures("data")
def test_a_missing_file_says_where_it_was_sought() -> None:
    with pytest.raises(DataError, match=r"releases\.toml does not exist; .*CASEBOOK_DATA"):
        load_releases()


def test_dropped_distributions_have_reasons() -> None:
    dropped = {d.name: d.reason for d in load_dropped()}
    assert {"torch", "triton", "sgl-kernel", "flashinfer-python"} <= set(dropped)
    assert all(dropped.values())
    assert "sglang" not in dropped


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ('names = "torch"\nreason = "x"', "must have a list `names` and a `reason`"),
        ('names = ["torch"]', "must have a list `names` and a `reason`"),
        ('names = ["torch", "Torch"]\nreason = "x"', "repeats torch"),
        ("names = [1]\nreason = 'x'", "is malformed: name"),
    ],
)
def test_a_malformed_list_of_dropped_ones_is_one_sentence(
    data: Path, block: str, sentence: str
) -> None:
    (data / "capsules" / "dropped.toml").write_text(f"schema = 1\n[[dropped]]\n{block}\n")
    with pytest.raises(DataError) as caught:
        load_dropped()
    assert sentence in str(caught.value)
