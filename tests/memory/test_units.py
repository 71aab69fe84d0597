"""Sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casebook.memory.units import parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("51.2GiB", round(51.2 * 2**30)),
        ("180 GB", 180 * 10**9),
        ("1024", 1024),
        (" 4gib ", 4 * 2**30),
        (".5 MiB", 2**19),
        ("1e3", 1000),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["nan", "inf GiB", "-1GiB", "4 GiG", "", "GiB", "1,5 GiB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_bytes(text)


@given(st.integers(0, 2**50))
def test_plain_bytes_stay(size: int) -> None:
    assert parse_bytes(str(size)) == size
    assert parse_bytes(f"{size}KiB") == size * 1024
