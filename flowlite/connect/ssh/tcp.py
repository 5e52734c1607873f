"""A TCP stream through a host, for asyncio: a channel behind a pair of sockets.

Two threads carry the bytes. Each blocks where its far side does not take more, so a slow reader slows the writer. They
end, and everything is closed, when both sides are done, when ours is closed, or when the transport dies.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from contextlib import suppress
from typing import Any

from flowlite.connect.ssh.library import paramiko
from flowlite.connect.ssh.link import Link

_BLOCK = 64 * 1024


async def open_stream(
    link: Link, address: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream from the host to an address and port as seen from there.

    Raises:
        NodeUnreachable: The host does not answer, or forbids it.
        ConnectionRefusedError: Nobody listens there.
    """
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[socket.socket] = loop.create_future()
    bridge = _Bridge(link, address, port, loop, opened)
    threading.Thread(target=bridge.serve, name="flowlite-ssh-tcp", daemon=True).start()
    try:
        ours = await opened
    except asyncio.CancelledError:
        bridge.abandon()
        raise
    reader, writer = await asyncio.open_connection(sock=ours)
    bridge.reader = reader
    return reader, writer


class _Bridge:
    """One stream. `serve` runs in a thread of its own, from opening the channel to the end."""

    def __init__(
        self,
        link: Link,
        address: str,
        port: int,
        loop: asyncio.AbstractEventLoop,
        opened: asyncio.Future[socket.socket],
    ) -> None:
        self.reader: asyncio.StreamReader | None = None
        self._link = link
        self._to = (address, port)
        self._loop = loop
        self._opened = opened
        self._abandoned = threading.Event()
        self._theirs: socket.socket | None = None

    def abandon(self) -> None:
        """Nobody wants it any more, before it was there."""
        self._abandoned.set()

    def serve(self) -> None:
        """Opens the channel, then carries what comes from the host."""
        try:
            channel = self._link.direct(*self._to)
        except Exception as error:
            self._tell(error)
            return
        ours, theirs = socket.socketpair()
        if self._abandoned.is_set() or not self._tell(ours):
            for thing in (ours, theirs, channel):
                thing.close()
            return
        upward = threading.Thread(
            target=self._carry_up, args=(theirs, channel), name="flowlite-ssh-tcp-up", daemon=True
        )
        upward.start()
        try:
            self._carry_down(theirs, channel)
        finally:
            upward.join()
            channel.close()
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

    def _carry_down(self, theirs: socket.socket, channel: Any) -> None:
        with suppress(OSError):
            while block := channel.recv(_BLOCK):
                theirs.sendall(block)
        if channel.eof_received and not channel.closed:
            # The far side has said all it had to say; ours may go on.
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_WR)
            return
        transport = channel.get_transport()
        if not transport.is_active():
            self._fail(ConnectionResetError(str(self._link.lost(transport))))
        with suppress(OSError):
            theirs.shutdown(socket.SHUT_RDWR)

    def _fail(self, error: Exception) -> None:
        def mark() -> None:
            if self.reader is not None and not self.reader.at_eof():
                self.reader.set_exception(error)

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(mark)

    def _carry_up(self, theirs: socket.socket, channel: paramiko.Channel) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            while block := theirs.recv(_BLOCK):
                channel.sendall(block)
            channel.shutdown_write()
            wait_for_hang_up(theirs)
        # Ours is gone altogether: nobody will read what may still come.
        channel.close()


def wait_for_hang_up(sock: socket.socket) -> None:
    """Returns when the other end of the pair is closed, or both have said their last."""
    poll = select.poll()
    poll.register(sock, 0)
    poll.poll()
