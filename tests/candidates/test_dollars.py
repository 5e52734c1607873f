"""Amounts of money as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.provider.dollars import dollars, exact


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0, "$0.00"), (1.25, "$1.25"), (1.002, "$1.002"), (0.001, "$0.001"), (1234.5, "$1,234.50")],
)
def test_exact(amount: float, text: str) -> None:
    assert exact(amount) == text


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_different_amounts_never_look_equal(one: int, other: int) -> None:
    shown = [exact(each / 10**4) for each in (one, other)]
    assert (shown[0] == shown[1]) == (one == other)


def test_fractions_of_a_cent() -> None:
    assert [dollars(each) for each in (0.001, 0.01, 1234.567)] == ["$0.0010", "$0.01", "$1,234.57"]
