"""One request on a channel, with flow control in both directions."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from flowlite.connect.bounded import parse_object
from flowlite.errors import NodeUnreachable
from flowlite.node.protocol import mux_framing
from flowlite.node.protocol.json_shapes import fields, integer, maybe, text

_END = fields({}, {"code": maybe(integer), "errno": integer, "text": text})
# Received bytes are acknowledged in units of this size.
_LUMP = 64 * 1024
# Maximum number of frames that wait to be read; frames without content cost memory, too.
_MOST_PIECES = 1 << 16
_NAMES = {
    mux_framing.OUT: "out",
    mux_framing.ERR: "err",
    mux_framing.END: "end",
    mux_framing.READY: "ready",
}


class Sender(Protocol):
    """The channel, as its streams use it."""

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        """Sends a frame."""

    def forget(self, stream: int) -> None:
        """No more frames of this stream are expected."""


class Stream:
    """One request in progress. Close it, or use it as a context manager.

    Attributes:
        over: Whether the mux server has reported the end of the request, or the connection broke.
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
        """Sends to the request's input. False if it no longer reads."""
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
        """Whether a few bytes could be sent without waiting for the mux server."""
        with self._changed:
            return self._credit > mux_framing.BLOCK or self.over

    def end_input(self) -> None:
        """Ends the request's input."""
        if not self.over:
            self._channel.send(mux_framing.END, self.number)

    # Receiving

    def piece(
        self, deadline: float | None = None, *, stall: float | None = None
    ) -> tuple[str, bytes] | None:
        """Returns the next item: "out" or "err" and bytes, "end" (of a TCP stream's output), "ready"; None at the end.

        Raises:
            TimeoutError: Nothing arrived before the deadline, or nothing moved for `stall` seconds.
            NodeUnreachable: The connection broke.
        """
        with self._changed:
            if deadline is not None and time.monotonic() > deadline:
                # Also for a command that writes without pause.
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
        """Yields all items to the end. Raises the errors of `piece`."""
        while (found := self.piece(deadline, stall=stall)) is not None:
            yield found

    @property
    def end(self) -> dict[str, Any]:
        """The result: {"code"} or {"errno", "text"}."""
        return self._end

    def close(self) -> None:
        """Ends the request; a process of it that still runs is killed."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._channel.forget(self.number)

    # Called by the channel

    def take(self, kind: int, payload: bytes) -> None:
        """Handles a frame that arrived. Raises ValueError if a mux server would not send it."""
        with self._changed:
            self._moved = time.monotonic()
            if kind == mux_framing.ACK:
                self._credit += mux_framing.count_of(payload)
            elif kind == mux_framing.DONE:
                end = parse_object(payload)
                _END(end)
                self._end, self.over = end, True
            elif kind in _NAMES:
                self._waiting += len(payload)
                if self._waiting > mux_framing.MOST_UNDER_WAY or len(self._pieces) > _MOST_PIECES:
                    raise mux_framing.NotAFrame("it sends more than it may, and does not wait")
                self._pieces.append((_NAMES[kind], payload))
            self._changed.notify_all()

    def fail(self, error: NodeUnreachable) -> None:
        """Ends the stream with an error, since the connection broke."""
        with self._changed:
            self._failed, self.over = error, True
            self._changed.notify_all()
