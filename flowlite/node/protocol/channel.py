"""One authenticated connection over a socket, used by the leader and by its clients.

It uses neither asyncio's transports nor, for each socket, the loop's `add_reader`: when a thousand nodes join, these
cost as much as the protocol itself, and transports copy the data that the kernel does not accept at once. Small
messages written in one iteration of the loop are sent together; a message with a blob is sent at once.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections import deque
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE
from typing import ClassVar

from .framing import Frame, Session, WireError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tls import TlsSession

HIGH_WATER = 512 * 1024
LOW_WATER = 128 * 1024
"""Thresholds, in unsent bytes, above which a connection counts as full and below which it no longer does."""

_READ_LITTLE, _READ_MUCH = 8 * 1024, 256 * 1024


class _Sockets:
    """The sockets of all channels of one event loop, in a selector of their own, which the loop watches as one file.

    For each socket the loop would make a handle, and run it in a context of its own for each event. That takes longer
    than to receive a message.
    """

    _of_loop: ClassVar[dict[asyncio.AbstractEventLoop, _Sockets]] = {}

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._selector = selectors.DefaultSelector()
        self._watched: set[int] = set()
        loop.add_reader(self._selector.fileno(), self._dispatch)

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Sockets:
        """Returns those of a loop."""
        if loop not in cls._of_loop:
            cls._of_loop[loop] = cls(loop)
        return cls._of_loop[loop]

    def watch(self, number: int, channel: Channel, events: int) -> None:
        """Lets a channel be called at these events of its socket, and at no others; 0: at none."""
        if number in self._watched and events:
            self._selector.modify(number, events, channel)
        elif number in self._watched:
            self._watched.remove(number)
            self._selector.unregister(number)
            if not self._watched:
                self._close()
        elif events:
            self._watched.add(number)
            self._selector.register(number, events, channel)

    def _close(self) -> None:
        del self._of_loop[self._loop]
        if not self._loop.is_closed():
            self._loop.remove_reader(self._selector.fileno())
        self._selector.close()

    def _dispatch(self) -> None:
        for key, events in self._selector.select(0):
            try:
                key.data._take_events(events)
            except Exception as error:
                self._loop.call_exception_handler(
                    {"message": "an error in a connection, which was closed", "exception": error}
                )


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
        self._sockets: _Sockets | None = None
        self._tls_session = tls_session
        self._socket: socket.socket | None = None
        self._pending: list[bytes] = []
        self._flushing: asyncio.Handle | None = None
        self._urgent = False
        self._receiving = False
        self._proved = False
        self._read_size = _READ_LITTLE
        # None until the kernel takes less than is written, as most connections of a rendezvous never see.
        self._backlog: deque[memoryview] | None = None
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
        self._sockets = _Sockets.of(self._loop)
        self._watch(EVENT_READ)
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
        elif urgent:
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Lets the pending messages be written in this iteration of the loop: after what is being received, if so."""
        self._urgent = True
        if self._flushing is None and not self._receiving:
            self._flushing = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Writes all pending messages to the socket, as far as the kernel accepts them."""
        self._urgent = False
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
            if self._backlog:
                self._watch(EVENT_WRITE)
            else:
                self._end(None)

    def abort(self, error: Exception | None = None) -> None:
        """Closes the connection at once."""
        self.closing = True
        self._pending.clear()
        self._backlog = None
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._watch(0)
        ended, self._socket = self._socket, None
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if ended is not None:
            ended.close()
            self._loop.call_soon(self.on_closed, error)

    def _watch(self, events: int) -> None:
        """Waits for these events of the socket, and for no others."""
        if self._sockets is not None and self._socket is not None:
            self._sockets.watch(self._socket.fileno(), self, events)

    def _take_events(self, events: int) -> None:
        """Reads and writes what can be read and written. The connection may have ended since the events happened."""
        if events & EVENT_WRITE and self._socket is not None:
            self._writable()
        if events & EVENT_READ and self._socket is not None and not self.closing:
            self._readable()

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
        self._receiving = True
        try:
            self._receive(data)
        except Exception as error:
            # The error is unexpected and the message may be half processed, so only a new connection is in a known
            # state.
            self.abort(error)
            raise
        finally:
            self._receiving = False
        if self._urgent:
            self.flush()

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
        if not self._proved:
            self._answer()
            if self.session.authenticated:
                self._proved = True
                self.on_opened()
        for frame in frames:
            if self.closing:
                return
            self.on_frame(frame)

    def _shake_hands(self) -> None:
        """Writes the TLS session's handshake data and, once it is open, schedules the pending messages."""
        if self._tls_session is not None:
            if wanted := self._tls_session.take():
                self._write(wanted)
            if self._pending:
                self._flush_soon()

    def _answer(self) -> None:
        """Queues the session's part of the opening handshake."""
        if self.session.outgoing:
            self._pending.append(self.session.outgoing)
            self.session.outgoing = b""
            self._flush_soon()

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
            self._watch(EVENT_READ | EVENT_WRITE)
        if self._backlog is None:
            self._backlog = deque()
        self._backlog.append(memoryview(data)[taken:])
        self._backlog_size += len(data) - taken
        # What is full stays so until `on_room` is called: small messages go out meanwhile, and must not end it.
        self.full = self.full or self._backlog_size > HIGH_WATER

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
            if self.closing:
                self._end(None)
                return
            self._watch(EVENT_READ)
        if self.full and self._backlog_size <= LOW_WATER and not self.closing:
            self.full = False
            self.on_room()
