"""One authenticated connection on an asyncio transport; what leader and member have in common.

Small messages written in one turn of the loop leave together: at the joining of a thousand nodes system calls are what
costs. A message with bytes beside it leaves at once.
"""

from __future__ import annotations

import asyncio
import socket

from .wire import Frame, Session, WireError

HIGH_WATER = 512 * 1024
"""Bytes not yet taken by the kernel above which a connection counts as full."""


class Connection(asyncio.Protocol):
    """Feeds a session. Subclasses say what to do when something happens: the methods that begin with `on_`.

    Attributes:
        full: Whether the other side (or the network) is slower than we write.
        closing: Whether it is over; nothing more comes in, nothing more goes out.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.full = False
        self.closing = False
        self._transport: asyncio.Transport | None = None
        self._pending: list[bytes] = []
        self._flushing: asyncio.Handle | None = None
        self._proved = False

    def on_opened(self) -> None:
        """Both sides have proved the secret."""

    def on_frame(self, frame: Frame) -> None:
        """A frame came."""

    def on_nonsense(self, error: WireError) -> None:
        """The peer does not know the secret, or the stream was tampered with. The connection is aborted after this."""

    def on_room(self) -> None:
        """The connection is not full any more."""

    def on_closed(self, error: Exception | None) -> None:
        """The connection is gone."""

    def send(self, header: bytes, blob: bytes = b"") -> None:
        """Send a message; `header` is encoded."""
        if self.closing or self._transport is None:
            return
        self._pending.append(self.session.seal(header, blob))
        if blob:
            self.flush()
        elif self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Hand everything to the transport now."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._pending and self._transport is not None:
            pending, self._pending = self._pending, []
            self._transport.write(b"".join(pending))

    def close(self) -> None:
        """End the connection after what was sent."""
        if not self.closing:
            self.flush()
            self.closing = True
            if self._transport is not None:
                self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self.closing:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=HIGH_WATER)
        # asyncio does it for the sockets it dials itself, not for accepted ones.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answer()
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        try:
            frames = self.session.receive(data)
        except WireError as error:
            self.on_nonsense(error)
            self.abort()
            return
        self._answer()
        if self.session.authenticated and not self._proved:
            self._proved = True
            self.on_opened()
        for frame in frames:
            if self.closing:
                return
            self.on_frame(frame)
        self.flush()

    def _answer(self) -> None:
        """What the opening wants sent."""
        if self.session.outgoing:
            self._pending.append(self.session.outgoing)
            self.session.outgoing = b""

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self.on_room()

    def connection_lost(self, error: Exception | None) -> None:
        self.closing = True
        if self._flushing is not None:
            self._flushing.cancel()
        self.on_closed(error)
