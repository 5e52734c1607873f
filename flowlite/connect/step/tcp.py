"""A TCP stream from a node, relayed by its porter, for asyncio: a stream of the channel behind a pair of sockets."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from flowlite.connect.ssh.tcp import wait_for_hang_up
from flowlite.connect.step.stream import Stream
from flowlite.errors import NodeUnreachable

_BLOCK = 64 * 1024


async def open_stream(
    ask: Callable[[Mapping[str, Any]], Stream], label: str, address: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream from the node to an address and port as seen from there.

    Raises:
        NodeUnreachable: The node does not answer.
        ConnectionRefusedError: Nobody listens there.
    """
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[socket.socket] = loop.create_future()
    relay = _Relay(ask, f"{label}: {address}:{port}", loop, opened)
    target = {"do": "tcp", "address": address, "port": port}
    thread = threading.Thread(target=relay.serve, args=(target,), daemon=True)
    thread.name = "flowlite-step-tcp"
    thread.start()
    try:
        ours = await opened
    except asyncio.CancelledError:
        relay.abandoned.set()
        raise
    reader, writer = await asyncio.open_connection(sock=ours)
    relay.reader = reader
    return reader, writer


class _Relay:
    """One stream. `serve` runs in a thread of its own, from its beginning to its end."""

    def __init__(
        self,
        ask: Callable[[Mapping[str, Any]], Stream],
        name: str,
        loop: asyncio.AbstractEventLoop,
        opened: asyncio.Future[socket.socket],
    ) -> None:
        self.reader: asyncio.StreamReader | None = None
        self.abandoned = threading.Event()
        self._ask = ask
        self._name = name
        self._loop = loop
        self._opened = opened

    def serve(self, target: Mapping[str, Any]) -> None:
        """Opens it, then carries what comes from the node."""
        try:
            stream = self._ask(target)
            if (first := stream.piece()) is None or first[0] != "ready":
                raise self._refused(stream)
        except Exception as error:
            self._tell(error)
            return
        ours, theirs = socket.socketpair()
        if self.abandoned.is_set() or not self._tell(ours):
            for thing in (ours, theirs, stream):
                thing.close()
            return
        upward = threading.Thread(target=self._carry_up, args=(theirs, stream), daemon=True)
        upward.name = "flowlite-step-tcp-up"
        upward.start()
        try:
            self._carry_down(theirs, stream)
        finally:
            upward.join()
            stream.close()
            theirs.close()

    def _refused(self, stream: Stream) -> OSError:
        end = stream.end
        number, text = int(end.get("errno", errno.EIO)), str(end.get("text", "it did not open"))
        return OSError(number, f"{self._name}: {text}")

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

    def _carry_down(self, theirs: socket.socket, stream: Stream) -> None:
        said_all = False
        try:
            with suppress(OSError):
                for name, block in stream.pieces():
                    if name == "end":
                        # The far side has said all it had to say; ours may go on.
                        said_all = True
                        theirs.shutdown(socket.SHUT_WR)
                    else:
                        theirs.sendall(block)
        except NodeUnreachable as error:
            self._fail(ConnectionResetError(str(error)))
        if not said_all or "errno" in stream.end:
            with suppress(OSError):
                theirs.shutdown(socket.SHUT_RDWR)

    def _fail(self, error: Exception) -> None:
        def mark() -> None:
            if self.reader is not None and not self.reader.at_eof():
                self.reader.set_exception(error)

        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(mark)

    def _carry_up(self, theirs: socket.socket, stream: Stream) -> None:
        with suppress(OSError):
            while (block := theirs.recv(_BLOCK)) and stream.send(block):
                pass
            stream.end_input()
            wait_for_hang_up(theirs)
        # Ours is gone altogether: nobody will read what may still come.
        stream.close()
