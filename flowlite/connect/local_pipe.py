"""A pipe to a command on this machine."""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from flowlite.connect.pipe import Pipe

_BLOCK = 256 * 1024
_END_SECONDS = 5.0


class LocalPipe(Pipe):
    def __init__(self, argv: Sequence[str]) -> None:
        self._child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C on our terminal must not reach it.
            start_new_session=True,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._in, self._out, self._err = (
            self._child.stdin.fileno(),
            self._child.stdout.fileno(),
            self._child.stderr.fileno(),
        )
        os.set_blocking(self._in, False)
        self._open = {self._out, self._err}
        # The number of a closed descriptor may soon be reused for another file.
        self._guard = threading.Lock()
        self._closed = False

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with self._guard:
                if self._closed:
                    raise BrokenPipeError("it was closed")
                with suppress(BlockingIOError):
                    view = view[os.write(self._in, view) :]
                    continue
            # Bounded, since the pipe may be closed meanwhile.
            _wait(self._in, select.POLLOUT, 0.5)

    def ready(self) -> bool:
        with self._guard:
            return not self._closed and _wait(self._in, select.POLLOUT, 0.0)

    def receive(self, seconds: float) -> bytes | None:
        until = time.monotonic() + seconds
        while self._out in self._open:
            poll = select.poll()
            for each in self._open:
                poll.register(each, select.POLLIN)
            found = poll.poll(max(0.0, until - time.monotonic()) * 1000)
            if not found:
                return None
            for descriptor, _ in sorted(found, reverse=True):
                block = os.read(descriptor, _BLOCK)
                if not block:
                    self._open.discard(descriptor)
                elif descriptor == self._err:
                    self._hear(block)
                else:
                    return block
        return b""

    def close(self) -> int | None:
        if self._child.returncode is not None:
            return self._child.returncode
        assert self._child.stdin is not None
        with self._guard, suppress(OSError):
            self._closed = True
            self._child.stdin.close()
        # A command that exits by itself explains its failure best.
        try:
            self._child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        if self._err in self._open:
            while _wait(self._err, select.POLLIN, 0.0) and (block := os.read(self._err, _BLOCK)):
                self._hear(block)
        for stream in (self._child.stdout, self._child.stderr):
            assert stream is not None
            stream.close()
        return self._child.returncode

    def abandon(self) -> None:
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _wait(descriptor: int, events: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, events)
    return bool(poll.poll(seconds * 1000))
