"""Frames: whatever pieces they come in, they are the same; what is none is found out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.node import frames

sent = st.lists(
    st.tuples(
        st.integers(frames.OPEN, frames.PONG), st.integers(0, 2**32 - 1), st.binary(max_size=60)
    ),
    max_size=12,
)


@given(sent, st.lists(st.integers(1, 40), min_size=1))
def test_frames_come_out_as_they_went_in(
    what: list[tuple[int, int, bytes]], sizes: list[int]
) -> None:
    data = b"".join(frames.frame(*each) for each in what)
    parser, found, position, turn = frames.Parser(), [], 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        found += list(parser.take(data[position : position + size]))
        position, turn = position + size, turn + 1
    assert found == what


@given(sent)
def test_every_frame_ends_with_a_newline(what: list[tuple[int, int, bytes]]) -> None:
    assert all(frames.frame(*each).endswith(b"\n") for each in what)


@pytest.mark.parametrize(
    "data",
    [
        b"srun: error: something\n",
        frames.frame(frames.OUT, 1, b"abc")[:-1] + b"!",
        b"\x02\0\0\0\x01\xff\xff\xff\xff" + b"x" * 20,
    ],
)
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(frames.NotAFrame):
        list(frames.Parser().take(data))


def test_frames_before_the_fault_are_given() -> None:
    taken = frames.Parser().take(frames.frame(frames.PING, 0) + b"x" * 40)
    assert next(taken) == (frames.PING, 0, b"")
    with pytest.raises(frames.NotAFrame):
        next(taken)
