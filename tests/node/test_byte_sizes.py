"""Numbers of bytes as people are shown them."""

from __future__ import annotations

import pytest

from flowlite.node.system.byte_sizes import human_size


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1234, "1.23 kB"),
        (999_499, "999 kB"),
        (999_600, "1 MB"),
        (1_200_000_000_000_000, "1.2 PB"),
    ],
)
def test_a_size_has_three_digits(size: int, shown: str) -> None:
    assert human_size(size) == shown
