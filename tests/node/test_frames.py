"""Frames: whatever pieces they come in, they are the same; what is none is found out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.node.protocol import mux_framing

sent = st.lists(
    st.tuples(
        st.integers(mux_framing.OPEN, mux_framing.PONG),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=60),
    ),
    max_size=12,
)


@given(sent, st.lists(st.integers(1, 40), min_size=1))
def test_frames_come_out_as_they_went_in(
    what: list[tuple[int, int, bytes]], sizes: list[int]
) -> None:
    data = b"".join(mux_framing.frame(*each) for each in what)
    parser, found, position, turn = mux_framing.Parser(), [], 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        found += list(parser.take(data[position : position + size]))
        position, turn = position + size, turn + 1
    assert found == what


@given(sent)
def test_every_frame_ends_with_a_newline(what: list[tuple[int, int, bytes]]) -> None:
    assert all(mux_framing.frame(*each).endswith(b"\n") for each in what)


@pytest.mark.parametrize(
    "data",
    [
        b"srun: error: something\n",
        mux_framing.frame(mux_framing.OUT, 1, b"abc")[:-1] + b"!",
        b"\x02\0\0\0\x01\xff\xff\xff\xff" + b"x" * 20,
    ],
)
def test_what_is_no_frame(data: bytes) -> None:
    with pytest.raises(mux_framing.NotAFrame):
        list(mux_framing.Parser().take(data))


def test_frames_before_the_fault_are_given() -> None:
    taken = mux_framing.Parser().take(mux_framing.frame(mux_framing.PING, 0) + b"x" * 40)
    assert next(taken) == (mux_framing.PING, 0, b"")
    with pytest.raises(mux_framing.NotAFrame):
        next(taken)
