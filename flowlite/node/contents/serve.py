"""Gives the contents of a task to its other nodes, until standard input ends or nobody has asked for long."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from ..protocol.framing import CONTENTS_ROLE, WireError
from ..protocol.listener import Listener
from ..protocol.stream import Stream
from ..system import atomic_files
from .credentials import Gang, written_out
from .task_contents import TaskContents

ABSENT = (1 << 64) - 1
"""Stands for the size of a content that is not here."""
_MOST_AT_ONCE = 32
_STALL_SECONDS = 60.0
# The supervisor ends it by closing its input. If that is lost on the way, it ends by itself.
_IDLE_SECONDS = 600.0
_BLOCK = 1 << 18


class ContentServer:
    """Gives away what belongs to the task and nothing else, to members of the gang and to nobody else."""

    def __init__(self, order: Mapping[str, Any]) -> None:
        self._wanted = TaskContents(order)
        self._places = threading.Semaphore(_MOST_AT_ONCE)
        self.used = time.monotonic()
        with written_out(order["home"], order["gang"]) as paths:
            gang = Gang(order["gang"])
            self.port = Listener(gang, paths, CONTENTS_ROLE, lambda _: True).open(self._serve)

    def _serve(self, stream: Stream, purpose: str, address: str) -> None:
        if not self._places.acquire(blocking=False):
            return
        try:
            stream.go_on(_STALL_SECONDS)
            given: set[bytes] = set()
            while True:
                for name in stream.read_line().split():
                    # Each content once: a connection cannot be made to carry more than the task has.
                    if name in given:
                        return
                    given.add(name)
                    self._give(stream, name.decode("ascii"))
        except (OSError, WireError, UnicodeDecodeError):
            return
        finally:
            self._places.release()

    def _give(self, stream: Stream, sha256: str) -> None:
        """Sends a content. Raises WireError if none of this name belongs to the task, or it is not whole."""
        size = self._wanted.sizes.get(sha256)
        if size is None:
            raise WireError("it asks for what is no content of the task")
        try:
            file = atomic_files.open_regular(self._wanted.path(sha256))
        except OSError:
            stream.send(ABSENT.to_bytes(8, "big"))
            return
        with file:
            if os.fstat(file.fileno()).st_size != size:
                stream.send(ABSENT.to_bytes(8, "big"))
                return
            stream.send(size.to_bytes(8, "big"))
            left = size
            while left:
                block = file.read(min(_BLOCK, left))
                if not block:
                    raise WireError("a content became shorter")
                stream.send(block)
                left -= len(block)
                self.used = time.monotonic()


def main(_: list[str]) -> int:
    """`contents-serve`: reads its order, prints {"port"} or {"failed"}, and serves."""
    order = json.loads(sys.stdin.buffer.readline())
    try:
        server = ContentServer(order)
        said: dict[str, Any] = {"port": server.port}
    except (OSError, ValueError) as error:
        said = {"failed": str(error)}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    if "failed" not in said:
        while time.monotonic() < server.used + _IDLE_SECONDS:
            if select.select([0], [], [], 10.0)[0] and not os.read(0, 4096):
                break
    # Threads that serve do not hold it up.
    os._exit("failed" in said)
