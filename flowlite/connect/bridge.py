"""A TCP stream through something else, for asyncio: a pair of sockets, and behind it whatever carries the bytes.

Two threads carry them. Each blocks where its far side does not take more, so a slow reader slows the writer. They end,
and everything is closed, when both sides are done, when ours is closed, or when what carries the bytes dies.
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
    """What can be closed."""

    def close(self) -> object: ...


Far = TypeVar("Far", bound=Closable)


class Bridge(ABC, Generic[Far]):
    """One stream. What it leads over is opened and carried by those that derive from it, in threads of its own."""

    name: str
    """Of its threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[socket.socket] = self._loop.create_future()
        self._abandoned = threading.Event()
        self._reader: asyncio.StreamReader | None = None

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Our end. Raises what opening the far side raised."""
        threading.Thread(target=self._serve, name=self.name, daemon=True).start()
        try:
            ours = await self._opened
        except asyncio.CancelledError:
            self._abandoned.set()
            raise
        self._reader, writer = await asyncio.open_connection(sock=ours)
        return self._reader, writer

    @abstractmethod
    def _reach(self) -> Far:
        """Opens the far side."""

    @abstractmethod
    def _carry_down(self, theirs: socket.socket, far: Far) -> None:
        """Carries what comes from there, to the end."""

    @abstractmethod
    def _carry_up(self, theirs: socket.socket, far: Far) -> None:
        """Carries what goes there, until nobody wants it any more."""

    def _fail(self, error: Exception) -> None:
        """Whoever reads is told that this was not the end."""

        def mark() -> None:
            if self._reader is not None and not self._reader.at_eof():
                self._reader.set_exception(error)

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(mark)

    def _serve(self) -> None:
        try:
            far = self._reach()
        except Exception as error:
            self._tell(error)
            return
        ours, theirs = socket.socketpair()
        if self._abandoned.is_set() or not self._tell(ours):
            for thing in (ours, theirs, far):
                thing.close()
            return
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
        """Hands over our end, or the error. False if nobody is there to take it."""

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
    """Returns when the other end of the pair is closed, or both have said their last."""
    poll = select.poll()
    poll.register(sock, 0)
    poll.poll()
