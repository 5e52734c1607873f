"""One authenticated connection over a socket, used by the leader and by its clients.

It uses the loop's `add_reader` and `add_writer` rather than asyncio's transports. When a thousand nodes join,
transports cost as much as the protocol itself, and they copy the data that the kernel does not accept at once. Small
messages written in one iteration of the loop are sent together; a message with a blob is sent at once.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress

from .framing import Frame, Session, WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tls import TlsSession

HIGH_WATER = 512 * 1024
LOW_WATER = 128 * 1024
"""Thresholds, in unsent bytes, above which a connection counts as full and below which it no longer does."""

_READ_LITTLE, _READ_MUCH = 8 * 1024, 256 * 1024


class Channel:
    """Moves bytes between a socket and a `Session`. Subclasses override the `on_...` callbacks.

    Attributes:
        full: Whether the peer or the network is slower than we write (back-pressure).
        closing: Whether the connection is closed or closing. It receives nothing more, and writes only what was sent
            before.
    """

    def __init__(self, session: Session, tls_session: TlsSession | None = None) -> None:
        """
        Args:
            tls_session: The TLS session of this connection; None for a connection without encryption.
        """
        self.session = session
        self.full = False
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._tls_session = tls_session
        self._socket: socket.socket | None = None
        self._pending: list[bytes] = []
        self._flushing: asyncio.Handle | None = None
        self._proved = False
        self._read_size = _READ_LITTLE
        self._backlog: deque[memoryview] = deque()
        self._backlog_size = 0

    def on_opened(self) -> None:
        """Called when both sides have proved that they know the secret."""

    def on_frame(self, frame: Frame) -> None:
        """Called for each frame received."""

    def on_nonsense(self, error: WireError) -> None:
        """Called when the peer does not know the secret, or the stream was tampered with, just before the abort."""

    def on_room(self) -> None:
        """Called when the connection is no longer full."""

    def on_closed(self, error: Exception | None) -> None:
        """Called when the connection has ended.

        It is called once, only if the connection was begun, and from the loop rather than from within another method.
        """

    def begin(self, connected: socket.socket) -> None:
        """Takes over a connected socket."""
        connected.setblocking(False)
        with suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        # The descriptor and not the socket object: for an unknown object the selector formats an error message that is
        # thrown away, which takes longer than the registration.
        self._loop.add_reader(connected.fileno(), self._readable)
        self._shake_hands()
        self._answer()

    def send(self, header: bytes, blob: bytes = b"", *, urgent: bool = True) -> None:
        """Sends a message; `header` is encoded already.

        A message that is not urgent is sent with the next one that is.
        """
        if self.closing or self._socket is None:
            return
        self._pending.append(self.session.seal(header, blob))
        if blob:
            self.flush()
        elif urgent and self._flushing is None:
            self._flushing = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes all pending messages to the socket, as far as the kernel accepts them."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._tls_session is not None and not self._tls_session.open:
            return
        if self._pending and self._socket is not None:
            pending, self._pending = self._pending, []
            data = pending[0] if len(pending) == 1 else b"".join(pending)
            self._write(data if self._tls_session is None else self._tls_session.seal(data))

    def close(self) -> None:
        """Closes the connection after everything sent so far has been written."""
        if self.closing:
            return
        self.flush()
        self.closing = True
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            if not self._backlog:
                self._end(None)

    def abort(self, error: Exception | None = None) -> None:
        """Closes the connection at once."""
        self.closing = True
        self._pending.clear()
        self._backlog.clear()
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        ended, self._socket = self._socket, None
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if ended is not None:
            self._loop.remove_reader(ended.fileno())
            self._loop.remove_writer(ended.fileno())
            ended.close()
            self._loop.call_soon(self.on_closed, error)

    def _readable(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(self._read_size)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.abort(error)
            return
        if not data:
            self.abort()
            return
        # Allocating a large buffer takes time, so a large read is only asked for while much data arrives.
        self._read_size = _READ_MUCH if len(data) >= _READ_LITTLE else _READ_LITTLE
        try:
            self._receive(data)
        except Exception as error:
            # The error is unexpected and the message may be half processed, so only a new connection is in a known
            # state.
            self.abort(error)
            raise

    def _receive(self, data: bytes) -> None:
        try:
            if self._tls_session is not None:
                data = self._tls_session.receive(data)
                self._shake_hands()
                if self.closing:
                    return
            frames = self.session.receive(data)
        except WireError as error:
            self.on_nonsense(error)
            self.abort(error)
            return
        self._answer()
        if self.session.authenticated and not self._proved:
            self._proved = True
            self.on_opened()
        for frame in frames:
            if self.closing:
                return
            self.on_frame(frame)
        if self._flushing is not None:
            self.flush()

    def _shake_hands(self) -> None:
        """Writes the TLS session's handshake data and, once it is open, schedules the pending messages."""
        if self._tls_session is not None:
            if wanted := self._tls_session.take():
                self._write(wanted)
            if self._pending and self._flushing is None:
                self._flushing = self._loop.call_soon(self.flush)

    def _answer(self) -> None:
        """Queues the session's part of the opening handshake."""
        if self.session.outgoing:
            self._pending.append(self.session.outgoing)
            self.session.outgoing = b""
            if self._flushing is None:
                self._flushing = self._loop.call_soon(self.flush)

    def _write(self, data: bytes) -> None:
        assert self._socket is not None
        taken = 0
        if not self._backlog:
            try:
                taken = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self.abort(error)
                return
            if taken == len(data):
                return
            self._loop.add_writer(self._socket.fileno(), self._writable)
        self._backlog.append(memoryview(data)[taken:])
        self._backlog_size += len(data) - taken
        self.full = self._backlog_size > HIGH_WATER

    def _writable(self) -> None:
        assert self._socket is not None
        try:
            while self._backlog:
                taken = self._socket.send(self._backlog[0])
                self._backlog_size -= taken
                if taken < len(self._backlog[0]):
                    self._backlog[0] = self._backlog[0][taken:]
                    break
                self._backlog.popleft()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.abort(error)
            return
        if not self._backlog:
            self._loop.remove_writer(self._socket.fileno())
            if self.closing:
                self._end(None)
        if self.full and self._backlog_size <= LOW_WATER and not self.closing:
            self.full = False
            self.on_room()
