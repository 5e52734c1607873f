"""What a function returned, as text and as JSON: in bounded time, with a mark where something is left out."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import OrderedDict
from pprint import pformat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.cli import result_text
from tests.cli.conftest import Flow
from tests.tasks_made_by_hand import HandMade

LONG_INT = 7 * 10**6000 + 1


def doubled(levels: int) -> Any:
    """A few bytes that take 2 ** levels elements to write out."""
    value: Any = "x"
    for _ in range(levels):
        value = [value, value]
    return value


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": (value,)}
    return value


def cyclic() -> Any:
    value: list[Any] = [1]
    value.append(value)
    return value


@dataclasses.dataclass
class Metrics:
    loss: float
    steps: list[int]


SMALL = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=9) | st.integers(), inner, max_size=4)
        | st.frozensets(st.integers())
    ),
    max_leaves=10,
)


@given(SMALL)
def test_what_is_small_looks_as_python_shows_it(value: Any) -> None:
    assert result_text.pretty(value) == pformat(value, width=120, sort_dicts=False)
    assert result_text.one_line(value) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        Metrics(0.5, list(range(60))),
        OrderedDict((f"key {n}", n) for n in range(30)),
        {"a": Metrics(1.0, [])},
        set(),
        frozenset({"a"}),
    ],
)
def test_types_of_libraries_are_laid_out_as_before(value: Any) -> None:
    assert result_text.pretty(value) == pformat(value, width=120, sort_dicts=False)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_long_int_is_written_out(sign: int) -> None:
    before = sys.get_int_max_str_digits()
    expected = ("-" if sign < 0 else "") + "7" + "0" * 5999 + "1"
    assert result_text.one_line(sign * LONG_INT) == expected
    assert result_text.one_line({"n": [sign * LONG_INT]}) == f"{{'n': [{expected}]}}"
    assert sys.get_int_max_str_digits() == before


CUT: dict[str, Any] = {
    "an int of a billion bits": 1 << 10**9,
    "a list doubled 34 times": doubled(34),
    "a list doubled 149 times": doubled(149),
    "a long list": list(range(300_000)),
    "a deep value": nested(220),
    "a list in itself": cyclic(),
    "a long text": ["x" * 3_000_000],
    "long bytes": {b"x" * 3_000_000: 1},
    "the same text many times": ["x" * 1000] * 100_000,
    "a wide dict": dict.fromkeys(range(300_000)),
}


@pytest.mark.parametrize("value", CUT.values(), ids=CUT)
def test_what_is_too_large_is_cut_with_a_mark(value: Any) -> None:
    for shown in (result_text.pretty(value), result_text.one_line(value)):
        assert len(shown) < 4_000_000
        assert shown.splitlines()[-1].startswith("… something is left out here")


def test_json_leaves_out_what_would_be_far_larger_than_it_is() -> None:
    assert result_text.as_json(doubled(149)) is None
    assert result_text.as_json(cyclic()) is None
    assert result_text.as_json(LONG_INT) is None
    assert result_text.as_json(["x" * 1000] * 100_000) is None
    assert result_text.as_json(["cat"] * 1_000_000) == ["cat"] * 1_000_000
    assert result_text.as_json(doubled(10)) == doubled(10)
    assert result_text.as_json((1, {"a": None})) == [1, {"a": None}]
    assert result_text.as_json({1, 2}) is None


@pytest.mark.parametrize(
    "value",
    [LONG_INT, doubled(34), nested(140), [float("nan")]],
    ids=["int", "doubled", "deep", "nan"],
)
def test_a_result_of_any_form_is_printed(value: Any, flow: Flow) -> None:
    made = HandMade("odd", nodes=1, per_node=1)
    made.returns(0, value)
    made.end()
    ran = flow("result", "odd")
    assert ran.code == 0, ran.err
    assert ran.out.strip()
    found = flow("result", "odd", "--json").json
    assert json.dumps(found["result_text"])


def test_an_exception_without_a_text_is_told_all_the_same(flow: Flow) -> None:
    made = HandMade("odd", nodes=1, per_node=1)
    made.raises(0, ValueError(LONG_INT), first=True)
    made.end("failed", "first failure: node 0, rank 0: ValueError")
    ran = flow("result", "odd")
    assert ran.code == 1
    assert "ValueError" in ran.err
    assert "not meant to happen" not in ran.err
