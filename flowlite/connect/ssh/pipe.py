"""A pipe to a command on a host."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from flowlite.connect.pipe import Pipe
from flowlite.errors import NodeUnreachable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from flowlite.connect.ssh.commands import Run


class SshPipe(Pipe):
    def __init__(self, run: AbstractContextManager[Run]) -> None:
        self._held = ExitStack()
        self._run: Run = self._held.enter_context(run)

    def send(self, data: bytes) -> None:
        if not self._run.send((data,)):
            raise BrokenPipeError("it does not listen any more")

    def ready(self) -> bool:
        return self._run.ready()

    def receive(self, seconds: float) -> bytes | None:
        try:
            for stream, block in self._run.pieces(time.monotonic() + seconds):
                if stream == "out":
                    return block
                self._hear(block)
        except TimeoutError:
            return None
        return b""

    def close(self) -> int | None:
        try:
            return self._run.code() if self._run.ended() else None
        except NodeUnreachable:
            return None
        finally:
            self._held.close()
