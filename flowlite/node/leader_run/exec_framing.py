"""The protocol between a caller and an exec server, inside a stream through the relay.

    caller -> exec server    RUN {"argv", "environment", "directory"}, then INPUT bytes…, INPUT_ENDS
    exec server -> caller    OUT bytes…, ERR bytes…, and last EXIT {"code"} or FAULT text

Each message is one byte for its kind, four for the length, and that many bytes.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

RUN, INPUT, INPUT_ENDS = b"R", b"I", b"E"
OUT, ERR, EXIT, FAULT = b"1", b"2", b"X", b"F"
BLOCK = 1 << 16
_MOST = 1 << 20
_HEAD = struct.Struct(">cI")


class Broken(OSError):
    """The peer is gone, or does not follow the protocol."""


class Frames:
    """Frames over a connected socket. Any thread may send, one may read."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Sends a frame. Raises OSError if the peer is gone."""
        with self._sending:
            self._connection.sendall(_HEAD.pack(kind, len(body)) + body)

    def read(self) -> tuple[bytes, bytes] | None:
        """Returns the next frame; None at the end. Raises Broken."""
        head = self._exactly(_HEAD.size)
        if head is None:
            return None
        kind, size = _HEAD.unpack(head)
        if size > _MOST:
            raise Broken(f"a frame of {size} bytes")
        body = self._exactly(size)
        if body is None:
            raise Broken("a frame was cut off")
        return kind, body

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        while (frame := self.read()) is not None:
            yield frame

    def _exactly(self, size: int) -> bytes | None:
        found = b""
        while len(found) < size:
            try:
                data = self._connection.recv(size - len(found))
            except OSError as error:
                raise Broken(str(error)) from error
            if not data:
                if found:
                    raise Broken("a frame was cut off")
                return None
            found += data
        return found
