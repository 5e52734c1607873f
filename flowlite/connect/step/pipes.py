"""A command of which both ends are ours: bytes to its input, bytes from its output, through any connection."""

from __future__ import annotations

import os
import select
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from flowlite.connect.base import Connection
from flowlite.connect.local import LocalConnection

if TYPE_CHECKING:
    from flowlite.connect.ssh.commands import Run
    from flowlite.connect.ssh.connection import SshConnection

_BLOCK = 256 * 1024
_MOST_SAID = 4000
_END_SECONDS = 5.0


class Pipe(ABC):
    """A command that runs. `send` is called by one thread at a time, `receive` and `close` by one other.

    Attributes:
        said: The end of what it wrote to its standard error.
    """

    said: bytes = b""

    @abstractmethod
    def send(self, data: bytes) -> None:
        """Sends all of it, waiting as long as that takes. Raises OSError once it does not listen any more."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether a few bytes could be sent without waiting."""

    @abstractmethod
    def receive(self, seconds: float) -> bytes | None:
        """What it says next; None if nothing comes for so long, b"" at its end. Raises NodeUnreachable."""

    @abstractmethod
    def close(self) -> int | None:
        """Ends it. Gives its exit status, None if that is not known. May be called twice."""

    def abandon(self) -> None:  # noqa: B027 - what goes through something else closes nothing
        """In a forked process: closes our end, and leaves the command alone."""

    def _hear(self, block: bytes) -> None:
        self.said = (self.said + block)[-_MOST_SAID:]


def open_pipe(base: Connection, argv: Sequence[str], seconds: float) -> Pipe:
    """Starts a command at the end of a connection.

    Raises:
        NodeUnreachable: The connection does not get there.
        OSError: It cannot be started here, or not in time.
    """
    # Only who has such a connection pays for its import.
    from flowlite.connect.ssh.connection import SshConnection
    from flowlite.connect.step.connection import StepConnection

    if isinstance(base, LocalConnection):
        return _LocalPipe(argv)
    if isinstance(base, SshConnection):
        return _SshPipe(base, argv, seconds)
    if isinstance(base, StepConnection):
        return base.pipe(argv, seconds)
    raise TypeError(f"{type(base).__name__} cannot carry a step")


class _LocalPipe(Pipe):
    def __init__(self, argv: Sequence[str]) -> None:
        self._child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C on our terminal is not meant for it.
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
        # A number of a closed descriptor may soon be that of another file.
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
            # Not for ever: it may be closed meanwhile.
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
        # What ends by itself says best why.
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


class _SshPipe(Pipe):
    def __init__(self, base: SshConnection, argv: Sequence[str], seconds: float) -> None:
        self._held = ExitStack()
        self._run: Run = self._held.enter_context(base.begin(argv, seconds))

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
        from flowlite.errors import NodeUnreachable

        try:
            return self._run.code() if self._run.ended() else None
        except NodeUnreachable:
            return None
        finally:
            self._held.close()
