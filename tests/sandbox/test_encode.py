"""Any value becomes JSON, and stays what it was as far as JSON can hold it."""

import dataclasses
import enum
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casebook_inside.encode import MAX_DEPTH, MAX_ITEMS, MAX_TEXT, encode, record_field_names

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def depth(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, items), default=0) if isinstance(value, (dict, list)) else 0


@given(plain.filter(lambda value: depth(value) <= MAX_DEPTH))
def test_json_values_stay_as_they_are(value: Any) -> None:
    encoded = encode(value)
    assert encoded == value
    assert json.loads(json.dumps(encoded)) == value


class Mode(enum.Enum):
    FAST = "fast"
    MANY = ("a", 1)


class Text(str, enum.Enum):  # noqa: UP042 - as SGLang writes them
    A = "a"


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Record:
    name: str
    inner: Any = None


class Struct:
    __struct_fields__ = ("a", "gone")

    def __init__(self) -> None:
        self.a = 1


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Moody:
    __struct_fields__ = ("x",)

    @property
    def x(self) -> int:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (Mode.FAST, "fast"),
        (Mode.MANY, ["a", 1]),
        (Text.A, "a"),
        (Number.ONE, 1),
        ((1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        ({1: "a", Text.A: "b"}, {"1": "a", "a": "b"}),
        (Record("x", Record("y")), {"name": "x", "inner": {"name": "y", "inner": None}}),
        (Struct(), {"a": 1, "gone": None}),
        (Moody(), {"x": None}),
        (Hostile(), {"$type": "Hostile", "$repr": "<repr failed: RuntimeError>"}),
        (Record, {"$type": "type", "$repr": f"<class '{__name__}.Record'>"}),
        (float("inf"), {"$type": "float", "$repr": "inf"}),
        (float("nan"), {"$type": "float", "$repr": "nan"}),
        (b"x", {"$type": "bytes", "$repr": "b'x'"}),
    ],
)
def test_what_json_cannot_hold(value: Any, encoded: Any) -> None:
    assert encode(value) == encoded
    json.dumps(encode(value))


def test_the_same_object_elsewhere_in_memory_is_the_same_text() -> None:
    assert encode(object()) == encode(object()) == {"$type": "object", "$repr": "<object object>"}


def test_nothing_floods_the_channel() -> None:
    assert len(encode("x" * 10_000_000)) == MAX_TEXT + 1
    assert len(encode(range(10))["$repr"]) < MAX_TEXT
    assert len(encode(list(range(MAX_ITEMS * 2)))) == MAX_ITEMS
    json.dumps(encode(10**100_000))
    endless: list[Any] = []
    endless.append(endless)
    assert len(json.dumps(encode(endless))) < 1000


def test_field_names() -> None:
    assert record_field_names(Record) == ["name", "inner"]
    assert record_field_names(Struct) == ["a", "gone"]
    assert record_field_names(int) == []
