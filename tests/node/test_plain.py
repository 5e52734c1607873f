"""The form that cannot execute: everything comes back as it was, and damaged data is an error and nothing else."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import json
import math
import pathlib
import random
import re
import struct
import sys
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flowlite.node.serialization import safe
from flowlite.node.serialization.safe_base import OUT_OF_LINE

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


# What an object of a document may be named.
TAGS = [
    *[
        "same",
        "int",
        "float",
        "complex",
        "str",
        "bytes",
        "bytearray",
        "range",
        "list",
        "set",
        "dict",
    ],
    *[
        "tuple",
        "frozenset",
        "doubles",
        "records",
        "datetime",
        "date",
        "time",
        "timedelta",
        "Decimal",
    ],
    *["PosixPath", "PurePosixPath", "UUID", "array", "scalar", "tensor"],
]


def round_trip(value: Any) -> Any:
    encoded = safe.encode(value)
    return safe.decode(encoded.structure, [memoryview(bytearray(part)) for part in encoded.buffers])


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down; NaN equals NaN, and -0.0 is not 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack("d", left) == struct.pack("d", right)
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        keys = same(list(left), list(right))
        return keys and same(list(left.values()), list(right.values()))
    if isinstance(left, set | frozenset):
        return left == right and sorted(map(type_of, left)) == sorted(map(type_of, right))
    return bool(left == right)


def type_of(value: Any) -> str:
    return type(value).__name__


zones = st.one_of(
    st.none(),
    st.just(datetime.UTC),
    st.timedeltas(datetime.timedelta(hours=-23), datetime.timedelta(hours=23)).map(
        datetime.timezone
    ),
)
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(allow_nan=False),
    st.text(st.characters()),
    st.binary(max_size=50),
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.uuids(),
)
scalars = st.one_of(
    hashable,
    st.floats(),
    st.complex_numbers(),
    st.binary(max_size=50).map(bytearray),
    st.datetimes(),
    st.tuples(st.datetimes(), zones).map(lambda pair: pair[0].replace(tzinfo=pair[1], fold=1)),
    st.times(),
    st.dates(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.builds(pathlib.PurePosixPath, st.text("abc/.", max_size=10)),
    st.builds(range, st.integers(), st.integers(), st.integers(1)),
)
rows = st.one_of(
    st.lists(st.floats(), min_size=8, max_size=30),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=8, max_size=30),
    st.lists(st.integers(-(2**64), 2**64), min_size=8, max_size=30),
    st.lists(st.text(), min_size=8, max_size=30),
)


def records(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists of dicts that have the same keys."""
    keys = st.lists(st.text(max_size=3), min_size=1, max_size=3, unique=True)
    return keys.flatmap(
        lambda names: st.lists(
            st.fixed_dictionaries(dict.fromkeys(names, inner)), min_size=2, max_size=4
        )
    )


values = st.recursive(
    st.one_of(scalars, rows),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(hashable, inner, max_size=5),
        records(inner),
        st.sets(hashable, max_size=5),
        st.frozensets(hashable, max_size=5),
    ),
    max_leaves=20,
)


@QUICK
@given(values)
@example([True] * 10)
@example([1, True, 1.0] * 5)
@example({1: "a", "1": "b", (1, 2): [None]})
@example("\ud800 alone")
@example(["\udfff"] * 10)
@example(-(2**63))
@example(10**5000)
@example("long " * OUT_OF_LINE)
@example(b"long " * OUT_OF_LINE)
@example([["a" * 5000] * 3, {"k": "a" * 5000}])
@example([{"a": 1}, {"a": 2.0}, {"a": None}])
@example([{"a": 1.5, "b": {"c": 2.5}}, {"a": 2.5, "b": {"c": 3.5}}])
@example(({"a": 1, "b": 2}, {"b": 1, "a": 2}))
@example([{1: "a"}, {True: "b"}, {1.0: "c"}])
@example([{"x" * 5000: 1}, {"x" * 5000: 2}])
@example({"a": {"n": 1}, "b": {"n": 2}})
@example([{}, {}])
@example(decimal.Decimal("-0E+5"))
@example(float("-inf"))
@example(datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(microseconds=1))))
def test_values_come_back_equal_and_of_the_same_types(value: Any) -> None:
    assert same(round_trip(value), value)


@pytest.mark.parametrize("bits", [62, 63, 64, 65, 20_000])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_of_any_size_come_back(bits: int, sign: int) -> None:
    """Decimals of more than 4300 digits are refused by Python's JSON."""
    for number in (sign * (1 << bits), sign * ((1 << bits) - 1)):
        for value in (number, [number, 1], [-1, number], {number: number}):
            encoded = safe.encode(value)
            assert len(encoded.structure) < 12_000 + 2 * bits
            assert safe.decode(encoded.structure, encoded.buffers) == value


@pytest.mark.parametrize("damage", [b"1.5", b"NaN", b"[1.5,2]", b"1e999", b"-Infinity"])
def test_a_number_that_we_never_write_is_damage(damage: bytes) -> None:
    structure = safe.encode([7, "x"]).structure
    assert structure.count(b"7") == 1
    with pytest.raises(safe.PlainError):
        safe.decode(structure.replace(b"7", damage), [])


def test_not_a_number_keeps_its_place() -> None:
    one, other = round_trip([math.nan, decimal.Decimal("sNaN")])
    assert math.isnan(one)
    assert other.is_snan()


def test_what_is_one_object_stays_one_object() -> None:
    shared = [1]
    text = "x" * (2 * OUT_OF_LINE)
    value = {"a": shared, "b": (shared, {"c": shared}), "texts": [text, text, 1]}
    found = round_trip(value)
    assert found["a"] is found["b"][0] is found["b"][1]["c"]
    assert found["texts"][0] is found["texts"][1]


def test_cycles_come_back() -> None:
    value: dict[str, Any] = {"list": []}
    value["list"].append(value)
    found = round_trip(value)
    assert found["list"][0] is found


def test_records_keep_what_is_one_object() -> None:
    shared = {"n": 1}
    rows: list[dict[str, Any]] = [{"n": i, "to": shared} for i in range(3)]
    rows[0]["next"], rows[1]["next"], rows[2]["next"] = rows[1], rows, rows[0]
    found = round_trip([rows, rows[2], shared])
    first, second, third = found[0]
    assert first["next"] is second
    assert second["next"] is found[0]
    assert third["next"] is first
    assert found[1] is third
    assert first["to"] is second["to"] is third["to"] is found[2]
    again = round_trip([shared, shared])
    assert again[0] is again[1]


def test_records_take_little_room_and_name_the_place() -> None:
    rows: list[dict[str, Any]] = [{"name": f"n{i}", "loss": i / 7} for i in range(1000)]
    encoded = safe.encode(rows)
    assert encoded.structure.count(b'"loss"') == 1
    assert safe.decode(encoded.structure, encoded.buffers) == rows
    rows[7]["loss"] = object()
    with pytest.raises(safe.NotPlain, match=re.escape("[7]['loss'] is of type object")):
        safe.encode(rows)


def test_a_tuple_that_contains_itself_is_refused() -> None:
    inner: list[Any] = []
    value = (inner,)
    inner.append(value)
    with pytest.raises(safe.NotPlain, match="contains itself"):
        safe.encode(value)


def test_sharing_keeps_the_encoding_small() -> None:
    value: Any = (1,)
    for _ in range(80):
        value = (value, value)
    assert len(safe.encode(value).structure) < 5000


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Text("a"),
        Point(1, 2),
        collections.OrderedDict(a=1),
        collections.defaultdict(list),
        collections.Counter("a"),
        collections.deque(),
        object(),
        len,
        lambda: 0,
        int,
        NotImplemented,
        ...,
        slice(1),
        iter([]),
        memoryview(b"a"),
        datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(0), "X")),
        ValueError(),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("place", ["{}", "[]", "()", "bare"])
def test_what_is_not_exactly_plain_is_refused(value: Any, place: str) -> None:
    held = {"{}": {"key": [0, value]}, "[]": [0, value], "()": (0, value), "bare": value}[place]
    where = {"{}": "['key'][1]", "[]": "[1]", "()": "[1]", "bare": ""}[place]
    with pytest.raises(safe.NotPlain) as caught:
        safe.encode(held)
    assert caught.value.place == where
    assert caught.value.type_name == safe.type_name(value)


def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(safe.NotPlain, match="levels deep"):
        safe.encode(value)


def test_deep_data_is_refused_and_not_a_crash() -> None:
    with pytest.raises(safe.PlainError, match="deep"):
        safe.decode(_document(b"[" * 100_000 + b"]" * 100_000))


def _document(value: bytes, memory: bytes = b"[]") -> bytes:
    return b'{"value":' + value + b',"memory":' + memory + b"}"


@pytest.mark.parametrize(
    "value",
    [
        b'{"bytes":[0,9223372036854775807]}',
        b'{"bytes":[-1,2]}',
        b'{"bytes":[9,-9]}',
        b'{"bytes":1}',
        b'{"bytes":-1}',
        b'{"str":[0,12]}',
        b'{"list":{"doubles":[0,16]}}',
        b'{"list":{"doubles":[0,7]}}',
        b'{"tuple":5}',
        b'{"dict":[[1,2],[3]]}',
        b'{"array":{"dtype":"<f8","shape":[4611686018427387904],"axes":[0],"writeable":true,"data":0}}',
        b'{"array":{"dtype":"|u1","shape":[-1,-11],"axes":[0,1],"writeable":true,"data":0}}',
        b'{"array":{"dtype":"|u1","shape":[1.5],"axes":[0],"writeable":true,"data":0}}',
    ],
    ids=bytes.decode,
)
def test_a_length_that_is_not_there_takes_no_memory(value: bytes) -> None:
    with pytest.raises(safe.PlainError):
        safe.decode(_document(value), [memoryview(b"eleven here")])


def _is_clean(structure: bytes, buffers: list[memoryview]) -> bool:
    """Decoding gives a value or the one error; anything else fails the test."""
    try:
        safe.decode(structure, buffers)
    except safe.PlainError:
        return False
    return True


def test_cut_off_data_is_always_an_error() -> None:
    value = {"a": [1.5, None, b"x"] * 3, "b": [0.5] * 9, "c": {1, 2}, "d": uuid.UUID(int=5)}
    encoded = safe.encode(value)
    for length in range(len(encoded.structure)):
        assert not _is_clean(encoded.structure[:length], encoded.buffers)
    assert not _is_clean(encoded.structure + b"N", encoded.buffers)
    for cut in range(len(encoded.buffers[-1])):
        assert not _is_clean(encoded.structure, [*encoded.buffers[:-1], encoded.buffers[-1][:cut]])


@QUICK
@given(values, st.randoms(use_true_random=False))
def test_damaged_data_is_a_clean_error_or_another_value(value: Any, chance: random.Random) -> None:
    encoded = safe.encode(value)
    for _ in range(5):
        damaged = bytearray(encoded.structure)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        _is_clean(bytes(damaged), encoded.buffers)


@QUICK
@given(st.binary(max_size=200))
@example(b'{"same":5}')
@example(b'{"dict":[[[]],[null]]}')
@example(b'{"set":[{"bytearray":[0,0]}]}')
@example(b'{"Decimal":"x"}')
@example(b'{"datetime":[[1,1,1],[0,0,0,0,0,[0]]]}')
@example(b'{"UUID":5}')
@example(b'{"list":[],"set":[]}')
@example(b"{}")
@example(b"1.5")
@example(b"9" * 5000)
def test_random_bytes_are_a_clean_error_or_a_value(data: bytes) -> None:
    _is_clean(data, [])
    _is_clean(_document(data), [memoryview(b"some buffer")])


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(TAGS) | st.text(), inner, max_size=2)
    ),
    max_leaves=15,
)


@QUICK
@given(documents, documents)
def test_any_document_is_a_clean_error_or_a_value(value: Any, memory: Any) -> None:
    structure = _document(json.dumps(value).encode(), json.dumps(memory).encode())
    _is_clean(structure, [memoryview(b"some buffer"), memoryview(bytearray(5000))])


def test_nothing_is_imported_for_data_that_does_not_need_it() -> None:
    import subprocess

    code = (
        "import sys; from flowlite.node.serialization import safe as plain; e = plain.encode({'a': [1, 2.5]});"
        "plain.decode(e.structure);"
        "print([m for m in ('numpy', 'torch', 'cloudpickle', 'decimal') if m in sys.modules])"
    )
    root = str(pathlib.Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
