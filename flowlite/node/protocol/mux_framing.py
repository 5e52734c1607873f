"""The framing of the mux server's pipe, which carries many streams at once, and of a command on another node.

A frame is a head (kind, stream, size), that many bytes, and a newline. The newline is there because Slurm holds back a
step's standard output after the last newline. A sender keeps at most `WINDOW` unacknowledged bytes of a stream in
flight, so a stream that is not read never blocks the others.

    to the mux server    OPEN {"do", …}   IN bytes   END   ACK count   CLOSE   PING
    from it              READY   OUT bytes   ERR bytes   END   ACK count   DONE {…}   PONG
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

GREETING = b"flowlite-mux-2\n"
"""The first line of a mux server. Output of a login shell or a prologue comes before it."""
OPEN, IN, OUT, ERR, END, ACK, CLOSE, READY, DONE, PING, PONG = range(1, 12)
WINDOW = 1 << 20
BLOCK = 64 * 1024
MOST_UNDER_WAY = WINDOW + 2 * BLOCK
"""The most bytes of a stream in flight. A program's two outputs may each have read one more block than `WINDOW`."""
LARGEST = 64 << 20
_HEAD = struct.Struct(">BII")
_COUNT = struct.Struct(">I")


class NotAFrame(ValueError):
    """The bytes received are not a frame of the other side."""


def frame(kind: int, stream: int, payload: bytes = b"") -> bytes:
    """Encodes one frame."""
    return _HEAD.pack(kind, stream, len(payload)) + payload + b"\n"


def count(taken: int) -> bytes:
    """Encodes an ACK's payload: how many more bytes were taken."""
    return _COUNT.pack(taken)


def count_of(payload: bytes) -> int:
    """Decodes the number of bytes that an ACK acknowledges."""
    return int(_COUNT.unpack(payload)[0])


class Parser:
    """Decodes frames of at most `largest` bytes from a byte stream."""

    def __init__(self, largest: int = LARGEST) -> None:
        self._rest = bytearray()
        self._largest = largest

    @property
    def is_inside_a_frame(self) -> bool:
        """Whether the bytes so far end within a frame."""
        return bool(self._rest)

    def take(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yields (kind, stream, payload) of each frame that is now complete. Raises NotAFrame."""
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
