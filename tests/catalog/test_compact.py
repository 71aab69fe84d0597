"""The compact list forms restore exactly what they encoded, whatever that was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casebook.catalog import compact, compact_lists, compact_names

words = st.sampled_from(
    ["linear_attention", "full_attention", "mamba", "moe", "conv", "E-1", "a.b"]
)
run_lists = st.lists(words | st.integers(-3, 12) | st.text(max_size=6), max_size=40)
periodic = st.builds(
    lambda inner, times, tail: inner * times + tail,
    st.lists(words, min_size=1, max_size=6),
    st.integers(1, 9),
    st.lists(words, max_size=4),
)
parts = st.sampled_from(
    ["model", "layers", "q_proj", "k_proj", "0", "1", "2", "10", "07", "2-4", "*"]
)
module_names = st.lists(parts, min_size=1, max_size=5).map(".".join)
any_names = module_names | st.text(alphabet="ab.{},-019*\0", max_size=8)


@given(run_lists | periodic)
def test_runs_round_trip(items: list[Any]) -> None:
    assert compact_lists.decode_runs(compact_lists.encode_runs(items)) == items


@given(st.lists(st.integers(0, 60), max_size=60))
def test_ranges_round_trip(numbers: list[int]) -> None:
    assert compact_lists.decode_ranges(compact_lists.encode_ranges(numbers)) == numbers


@given(st.lists(any_names, max_size=40))
def test_names_round_trip_in_any_order(names: list[str]) -> None:
    assert compact_names.decode_names(compact_names.encode_names(names)) == names


@given(st.lists(any_names, max_size=40, unique=True).map(sorted))
def test_names_round_trip_when_sorted(names: list[str]) -> None:
    assert compact_names.decode_names(compact_names.encode_names(names)) == names


json_values = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=12)
        | st.dictionaries(st.text("abc_", min_size=1, max_size=4), inner | st.none(), max_size=4)
        | st.dictionaries(module_names.map("m.".__add__), inner, max_size=12)
    ),
    max_leaves=25,
)
documents = st.dictionaries(st.text("abc_", min_size=1, max_size=4), json_values | st.none())


@given(documents | st.fixed_dictionaries({"layers": periodic, "targets": st.lists(module_names)}))
def test_documents_round_trip_or_are_refused(document: dict[str, Any]) -> None:
    try:
        packed, paths = compact.pack(document)
    except ValueError:
        return  # a dotted key or a null in a list: the importer reports it
    assert "null" not in json.dumps(packed).replace('"null"', "")
    restored = compact.unpack(packed, paths)
    assert json.dumps(restored, sort_keys=True) == json.dumps(document, sort_keys=True)


def test_a_hybrid_layer_list_becomes_one_readable_line() -> None:
    layers = (["linear_attention"] * 3 + ["full_attention"]) * 16
    assert compact_lists.encode_runs(layers) == "(linear_attention*3, full_attention)*16"


def test_text_sorted_module_names_become_one_block() -> None:
    names = sorted(f"m.layers.{i}.{p}" for i in range(12) for p in ("q_proj", "k_proj"))
    assert compact_names.encode_names(names) == [["m.layers.{0-11}.{k_proj,q_proj}"]]


def test_module_names_in_layer_order_keep_that_order() -> None:
    names = [f"m.layers.{i}.conv1d" for i in (0, 2, 3, 4, 11)]
    assert compact_names.encode_names(names) == ["m.layers.{0,2-4,11}.conv1d"]


@pytest.mark.parametrize(
    ("decode", "pattern"),
    [
        (compact_lists.decode_runs, "(a, b"),
        (compact_lists.decode_runs, "a, , b"),
        (compact_lists.decode_runs, "a*x"),
        (compact_lists.decode_runs, "a b"),
        (compact_lists.decode_runs, "(a*1000)*1000000"),
        (compact_lists.decode_ranges, "3-1"),
        (compact_lists.decode_ranges, "1-3-5"),
        (compact_lists.decode_ranges, "0-99999999999"),
        (compact_names.decode_names, ["a.{0-2"]),
        (compact_names.decode_names, ["a}b"]),
        (compact_names.decode_names, ["a.{0-99999999999}"]),
    ],
)
def test_a_malformed_pattern_is_a_value_error(decode: Any, pattern: Any) -> None:
    with pytest.raises(ValueError):
        decode(pattern)


def test_unpack_names_the_path_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match=r"config\.missing"):
        compact.unpack({"config": {}}, compact.CompactPaths(runs=("config.missing",)))
    with pytest.raises(ValueError, match=r"config\.x"):
        compact.unpack({"config": {"x": 1}}, compact.CompactPaths(nulls=("config.x",)))
