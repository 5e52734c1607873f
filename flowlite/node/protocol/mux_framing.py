"""What goes over one pipe to the mux server and back: many streams side by side, in frames.

A frame is a head (kind, stream, size), as many bytes, and a newline: what carries the standard output of a Slurm step
holds back what comes after the last newline. Whoever sends keeps at most `WINDOW` bytes of a stream under way that the
other side has not acknowledged, so that a stream nobody reads never stops the others.

    to the mux server    OPEN {"do", …}   IN bytes   END   ACK count   CLOSE   PING
    from it          READY   OUT bytes   ERR bytes   END   ACK count   DONE {…}   PONG
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

GREETING = b"flowlite-porter-1\n"
"""The first line of a mux server. What a login shell or a prologue says comes before it."""
OPEN, IN, OUT, ERR, END, ACK, CLOSE, READY, DONE, PING, PONG = range(1, 12)
WINDOW = 1 << 20
BLOCK = 64 * 1024
MOST_UNDER_WAY = WINDOW + 2 * BLOCK
"""A stream's bytes that may be under way at a time: of both outputs of a program one more block may have been read."""
LARGEST = 64 << 20
_HEAD = struct.Struct(">BII")
_COUNT = struct.Struct(">I")


class NotAFrame(ValueError):
    """What came is nothing that the other side has sent."""


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return _HEAD.pack(kind, stream, len(payload)) + payload + b"\n"


def count(taken: int) -> bytes:
    """What an ACK says: so many more bytes were taken."""
    return _COUNT.pack(taken)


def count_of(payload: bytes) -> int:
    """How many bytes an ACK acknowledges."""
    return int(_COUNT.unpack(payload)[0])


class Parser:
    """Frames from bytes as they come, each of at most `largest` bytes."""

    def __init__(self, largest: int = LARGEST) -> None:
        self._rest = bytearray()
        self._largest = largest

    def take(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """(kind, stream, payload) of each frame that is complete now. Raises NotAFrame."""
        self._rest += data
        begin = 0
        try:
            while len(self._rest) - begin > _HEAD.size:
                kind, stream, size = _HEAD.unpack_from(self._rest, begin)
                if not OPEN <= kind <= PONG or size > self._largest:
                    raise NotAFrame(f"{bytes(self._rest[begin : begin + 40])!r} begins no frame")
                end = begin + _HEAD.size + size
                if len(self._rest) <= end:
                    break
                if self._rest[end] != 0x0A:
                    raise NotAFrame(f"a frame ends with {self._rest[end]:#x}")
                payload = bytes(self._rest[begin + _HEAD.size : end])
                begin = end + 1
                yield kind, stream, payload
        finally:
            del self._rest[:begin]
