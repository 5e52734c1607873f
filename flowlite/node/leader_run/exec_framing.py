"""The protocol between a caller and an exec server, inside a stream through the relay.

    caller -> exec server    OPEN {"argv"}, then IN bytes…, END
    exec server -> caller    OUT bytes…, ERR bytes…, and last DONE {"code"} or {"text"}

The frames are those of the mux server (`protocol/mux_framing.py`), all of one stream.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from ..protocol import mux_framing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol.stream import Stream

_LARGEST = 1 << 20


class Broken(OSError):
    """The peer is gone, or does not follow the protocol."""


class Frames:
    """Frames over a connected socket. Any thread may send, one may read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._parser = mux_framing.Parser(_LARGEST)
        self._came: deque[tuple[int, bytes]] = deque()

    def send(self, kind: int, body: bytes = b"") -> None:
        """Sends a frame. Raises OSError if the peer is gone."""
        with self._sending:
            self._connection.sendall(mux_framing.frame(kind, 1, body))

    def read(self) -> tuple[int, bytes] | None:
        """Returns the next frame; None at the end. Raises Broken."""
        while not self._came:
            try:
                data = self._connection.recv(mux_framing.BLOCK)
                self._came += ((kind, body) for kind, _, body in self._parser.take(data))
            except (OSError, mux_framing.NotAFrame) as error:
                raise Broken(str(error)) from error
            if not data:
                if self._parser.is_inside_a_frame:
                    raise Broken("a frame was cut off")
                return None
        return self._came.popleft()

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        while (frame := self.read()) is not None:
            yield frame


@contextmanager
def frames_through(stream: Stream) -> Iterator[Frames]:
    """Frames through a stream, which a thread carries until the block ends."""
    ours, theirs = socket.socketpair()
    carrying = threading.Thread(target=carry, args=(stream, theirs), daemon=True)
    carrying.start()
    try:
        with ours:
            yield Frames(ours)
    finally:
        carrying.join()


def carry(stream: Stream, end: socket.socket) -> None:
    """Copies bytes between a stream and one end of a socket pair, until either ends."""
    with end:
        stream.bridge(end.fileno(), end.fileno())
