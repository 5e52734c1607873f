"""One request on a channel: its input goes out, its output comes in, each side at the pace of the other."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from flowlite.connect.bounded import parse_object
from flowlite.errors import NodeUnreachable
from flowlite.node.protocol import mux_framing

# What was taken is acknowledged in lumps.
_LUMP = 64 * 1024
# Frames of which nothing was taken yet; those without content cost memory, too.
_MOST_PIECES = 1 << 16
_NAMES = {
    mux_framing.OUT: "out",
    mux_framing.ERR: "err",
    mux_framing.END: "end",
    mux_framing.READY: "ready",
}


class Sender(Protocol):
    """The channel that carries a stream, as the stream needs it."""

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        """Sends a frame."""

    def forget(self, stream: int) -> None:
        """No frames of this stream are expected any more."""


class Stream:
    """One request while it is carried out. Close it, or use it as a context manager.

    Attributes:
        over: Whether the far end has said how it ended, or cannot any more.
    """

    def __init__(self, channel: Sender, number: int) -> None:
        self.number = number
        self.over = False
        self._channel = channel
        self._changed = threading.Condition()
        self._pieces: deque[tuple[str, bytes]] = deque()
        self._credit = mux_framing.WINDOW
        self._waiting = 0
        self._taken = 0
        self._end: dict[str, Any] = {}
        self._failed: NodeUnreachable | None = None
        self._closed = False
        self._moved = time.monotonic()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Sending

    def send(self, data: bytes | memoryview) -> bool:
        """Sends to its input. False if it does not listen any more."""
        view = memoryview(data)
        while view:
            with self._changed:
                self._changed.wait_for(lambda: self._credit > 0 or self.over or self._closed)
                if self.over or self._closed:
                    return False
                block = view[: min(self._credit, mux_framing.BLOCK)]
                self._credit -= len(block)
            self._channel.send(mux_framing.IN, self.number, bytes(block))
            view = view[len(block) :]
        return True

    def ready(self) -> bool:
        """Whether a few bytes could be sent without waiting for the far end."""
        with self._changed:
            return self._credit > mux_framing.BLOCK or self.over

    def end_input(self) -> None:
        """Nothing more will be sent."""
        if not self.over:
            self._channel.send(mux_framing.END, self.number)

    # Receiving

    def piece(
        self, deadline: float | None = None, *, stall: float | None = None
    ) -> tuple[str, bytes] | None:
        """What comes next: "out" or "err" and bytes, "end" (of a TCP stream's), "ready"; None at the end of all.

        Raises:
            TimeoutError: Nothing came before the deadline, or nothing moved for `stall` seconds.
            NodeUnreachable: The way there broke.
        """
        with self._changed:
            if deadline is not None and time.monotonic() > deadline:
                # Also of one that says something all the time.
                raise TimeoutError
            while not self._pieces:
                if self._failed is not None:
                    raise self._failed
                if self.over or self._closed:
                    return None
                until = deadline if stall is None else self._moved + stall
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError
                self._changed.wait(left)
            found = self._pieces.popleft()
            self._waiting -= len(found[1])
            self._taken += len(found[1])
            taken = self._taken if self._taken >= _LUMP else 0
            self._taken -= taken
        if taken and not self.over:
            self._channel.send(mux_framing.ACK, self.number, mux_framing.count(taken))
        return found

    def pieces(
        self, deadline: float | None = None, *, stall: float | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """All that comes, to the end. Raises as `piece`."""
        while (found := self.piece(deadline, stall=stall)) is not None:
            yield found

    @property
    def end(self) -> dict[str, Any]:
        """How it ended: {"code"} or {"errno", "text"}."""
        return self._end

    def close(self) -> None:
        """Whatever of it still runs is killed."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._channel.forget(self.number)

    # From the channel

    def take(self, kind: int, payload: bytes) -> None:
        """A frame came. Raises ValueError if no mux server sends such a frame."""
        with self._changed:
            self._moved = time.monotonic()
            if kind == mux_framing.ACK:
                self._credit += mux_framing.count_of(payload)
            elif kind == mux_framing.DONE:
                self._end, self.over = parse_object(payload), True
            elif kind in _NAMES:
                self._waiting += len(payload)
                if self._waiting > mux_framing.MOST_UNDER_WAY or len(self._pieces) > _MOST_PIECES:
                    raise mux_framing.NotAFrame("it sends more than it may, and does not wait")
                self._pieces.append((_NAMES[kind], payload))
            self._changed.notify_all()

    def fail(self, error: NodeUnreachable) -> None:
        """The way there broke."""
        with self._changed:
            self._failed, self.over = error, True
            self._changed.notify_all()
