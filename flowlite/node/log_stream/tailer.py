"""Follows the files of a node's workers by byte offset.

The tailer reads blocks, not lines, and does not interpret them. It reads only as far as the window allows, so
back-pressure from a slow supervisor slows the tailer, never the worker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from .flow_control import BLOCK, StreamSender, parse_stream

BUSY = 0.02
"""Seconds until files are read again while they grow."""

IDLE = 0.08
"""Seconds until files are read again when they have not grown for a while; bounds the delay of a line."""

_ROUND = 1024 * 1024

SendChunk = Callable[[int, str, int, bytes], bool]
"""Sends (rank, stream, offset, bytes); returns whether more may be sent at once."""


class Tailer:
    """Reads the new bytes of all streams and sends them.

    Attributes:
        delay: Seconds after which to call `advance` again.
    """

    def __init__(
        self, sender: StreamSender, streams: Callable[[], Mapping[str, Path]], send: SendChunk
    ) -> None:
        self._sender = sender
        self._streams = streams
        self._send = send
        self._files: dict[str, int] = {}
        self._final: dict[str, int] = {}
        self._turn = 0
        self.delay = BUSY

    def finish(self, rank: int, sizes: Mapping[str, int]) -> None:
        """Sets the final sizes of the streams of a rank."""
        for stream, size in sizes.items():
            self._final[f"{rank}.{stream}"] = size

    def advance(self) -> bool:
        """Sends new bytes, up to 1 MiB in all. Returns whether there may be more to send at once.

        If not, call it again after `delay` seconds.
        """
        names = list(self._streams().items())
        budget, sent, more = _ROUND, False, False
        # Start with another stream each time, so that a stream that always has data does not starve the others.
        self._turn += 1
        first = self._turn % len(names) if names else 0
        for name, path in names[first:] + names[:first]:
            room = min(BLOCK, budget, self._sender.room)
            if room <= 0:
                more = self._sender.room > 0
                break
            size = self._advance(name, path, room)
            if size < 0:
                break
            sent = sent or size > 0
            more = more or size == room
            budget -= size
        self.delay = BUSY if sent else min(IDLE, self.delay * 1.25)
        return more

    def _advance(self, name: str, path: Path, room: int) -> int:
        """Sends the next block of one stream. Returns its size, or -1 if nothing more may be sent now."""
        offset = self._sender.offset(name)
        if offset is None:
            return 0
        rank, stream = parse_stream(name)
        final = self._final.get(name)
        if final is None and stream == "result":
            return 0
        block = self._read(name, path, offset, room if final is None else min(room, final - offset))
        if not block:
            return 0
        self._sender.sent(name, len(block))
        return len(block) if self._send(rank, stream, offset, block) else -1

    def _read(self, name: str, path: Path, offset: int, size: int) -> bytes:
        if size <= 0:
            return b""
        descriptor = self._files.get(name)
        if descriptor is None:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return b""
            self._files[name] = descriptor
        return os.pread(descriptor, size, offset)

    def close(self) -> None:
        """Closes all files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
