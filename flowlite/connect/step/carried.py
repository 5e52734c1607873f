"""A command on a node of a step connection, as a pipe for another step connection."""

from __future__ import annotations

import time

from flowlite.connect.pipe import Pipe
from flowlite.connect.step.stream import Stream


class CarriedPipe(Pipe):
    """A stream with the interface of a pipe."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._ended = False

    def send(self, data: bytes) -> None:
        if not self._stream.send(data):
            raise BrokenPipeError("it does not listen any more")

    def ready(self) -> bool:
        return self._stream.ready()

    def receive(self, seconds: float) -> bytes | None:
        deadline = time.monotonic() + seconds
        while not self._ended:
            try:
                found = self._stream.piece(deadline)
            except TimeoutError:
                return None
            if found is None:
                self._ended = True
            elif found[0] == "out":
                return found[1]
            else:
                self._hear(found[1])
        return b""

    def close(self) -> int | None:
        self._stream.close()
        code = self._stream.end.get("code")
        return None if code is None else int(code)
