"""TCP streams for asyncio that are carried by something else, such as an SSH channel.

The asyncio side is one end of a socket pair. Two threads copy between its other end and the carrier, one per direction.
Each blocks while its receiver takes no more, which gives back-pressure. The threads end, and everything is closed, when
both sides are done, when our side is closed, or when the carrier fails.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

BLOCK = 64 * 1024


class Closable(Protocol):
    """An object that can be closed."""

    def close(self) -> object: ...


Far = TypeVar("Far", bound=Closable)


class Bridge(ABC, Generic[Far]):
    """One stream. Subclasses open the far side and copy its bytes; their methods run in threads."""

    name: str
    """Name of its threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[socket.socket] = self._loop.create_future()
        self._abandoned = threading.Event()
        self._reader: asyncio.StreamReader | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Opens the stream and returns our end. Raises the error that opening the far side raised."""
        threading.Thread(target=self._serve, name=self.name, daemon=True).start()
        try:
            ours = await self._opened
        except asyncio.CancelledError:
            self._abandoned.set()
            # It may have opened in the same turn of the loop.
            if (
                self._opened.done()
                and not self._opened.cancelled()
                and not self._opened.exception()
            ):
                self._opened.result().close()
            raise
        self._reader, writer = await asyncio.open_connection(sock=ours)
        return self._reader, writer

    @abstractmethod
    def _reach(self) -> Far:
        """Opens the far side."""

    @abstractmethod
    def _carry_down(self, theirs: socket.socket, far: Far) -> None:
        """Copies bytes from the far side to our side, until the far side ends."""

    @abstractmethod
    def _carry_up(self, theirs: socket.socket, far: Far) -> None:
        """Copies bytes from our side to the far side, until the stream is no longer wanted."""

    def _fail(self, error: Exception) -> None:
        """Makes the reader raise `error` in place of a normal end of file."""

        def mark() -> None:
            if self._reader is not None and not self._reader.at_eof():
                self._reader.set_exception(error)

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(mark)

    def _serve(self) -> None:
        try:
            # Before the far side is opened: without free descriptors, nothing is left open there.
            ours, theirs = socket.socketpair()
        except OSError as error:
            self._tell(error)
            return
        try:
            far = self._reach()
        except Exception as error:
            ours.close()
            theirs.close()
            self._tell(error)
            return
        if self._abandoned.is_set() or not self._tell(ours):
            for thing in (ours, theirs, far):
                thing.close()
            return
        # A loop that is closed before it takes our end drops it, and nothing here may keep it open.
        del ours
        upward = threading.Thread(
            target=self._carry_up, args=(theirs, far), name=f"{self.name}-up", daemon=True
        )
        upward.start()
        try:
            self._carry_down(theirs, far)
        finally:
            upward.join()
            far.close()
            theirs.close()

    def _tell(self, outcome: socket.socket | Exception) -> bool:
        """Passes our end, or the error, to the event loop. False if the loop is closed."""

        def take() -> None:
            if self._opened.done():
                if isinstance(outcome, socket.socket):
                    outcome.close()
            elif isinstance(outcome, Exception):
                self._opened.set_exception(outcome)
            else:
                self._opened.set_result(outcome)

        try:
            self._loop.call_soon_threadsafe(take)
        except RuntimeError:
            return False
        return True


def wait_for_hang_up(sock: socket.socket) -> None:
    """Returns when the other end of the pair is closed, or both ends have been shut down for writing."""
    poll = select.poll()
    poll.register(sock, 0)
    poll.poll()
