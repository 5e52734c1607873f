"""Follows the files of a node's workers by byte offset.

The tailer reads blocks, not lines, and does not interpret them. It reads only as far as the window allows.
"""

from __future__ import annotations

import logging
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

log = logging.getLogger("flowlite.tailer")


class Tailer:
    """Reads the new bytes of all streams and sends them.

    Attributes:
        delay: Seconds after which to call `advance` again.
    """

    def __init__(
        self,
        sender: StreamSender,
        streams: Callable[[], Mapping[str, Path]],
        send: SendChunk,
        emptied: Callable[[int, str], None],
    ) -> None:
        """
        Args:
            emptied: Called with (rank, stream) once the file of a stream is shorter than what was sent of it: its
                worker has opened it anew, and lines are lost.
        """
        self._sender = sender
        self._streams = streams
        self._send = send
        self._emptied = emptied
        self._told: set[tuple[str, str]] = set()
        self._files: dict[str, int] = {}
        self._final: dict[str, int] = {}
        self._turn = 0
        self.delay = BUSY

    def finish(self, rank: int, sizes: Mapping[str, int]) -> dict[str, int]:
        """Sets the final sizes of the streams of a rank, and returns them.

        A file that was removed while its worker wrote to it has its size still, as long as it is open here.
        """
        found = {each: size or self._size(f"{rank}.{each}") for each, size in sizes.items()}
        self._final.update({f"{rank}.{stream}": size for stream, size in found.items()})
        return found

    def _size(self, name: str) -> int:
        descriptor = self._files.get(name)
        return 0 if descriptor is None else os.fstat(descriptor).st_size

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
        try:
            if (descriptor := self._files.get(name)) is None:
                descriptor = self._files[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            block = os.pread(descriptor, size, offset)
            shrunk = not block and os.fstat(descriptor).st_size < offset
        except FileNotFoundError:
            return b""
        except OSError as error:
            # Perhaps no descriptor is free. It is tried again, and other streams are sent meanwhile.
            if self._is_first(name, "unreadable"):
                log.warning("%s cannot be read: %s", path, error)
            return b""
        if shrunk and self._is_first(name, "emptied"):
            self._emptied(*parse_stream(name))
        return block

    def _is_first(self, name: str, trouble: str) -> bool:
        first = (name, trouble) not in self._told
        self._told.add((name, trouble))
        return first

    def close(self) -> None:
        """Closes all files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
