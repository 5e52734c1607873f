"""One authenticated connection over a socket; what leader and member have in common.

It stands on `add_reader` and `add_writer` of the loop rather than on asyncio's transports: at the joining of a thousand
nodes those cost as much as the protocol itself, and they copy what the kernel does not take at once. Small messages
written in one turn of the loop leave together; a message with bytes beside it leaves at once.
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
"""Bytes not yet taken by the kernel above which a connection counts as full, and below which it does no more."""

_READ_LITTLE, _READ_MUCH = 8 * 1024, 256 * 1024


class Channel:
    """Feeds a session. Subclasses say what to do when something happens: the methods that begin with `on_`.

    Attributes:
        full: Whether the other side (or the network) is slower than we write.
        closing: Whether it is over; nothing more comes in, nothing more goes out but what was sent before.
    """

    def __init__(self, session: Session, shield: TlsSession | None = None) -> None:
        """
        Args:
            shield: Encrypts what goes over the network; None leaves it plain.
        """
        self.session = session
        self.full = False
        self.closing = False
        self._loop = asyncio.get_running_loop()
        self._shield = shield
        self._socket: socket.socket | None = None
        self._pending: list[bytes] = []
        self._flushing: asyncio.Handle | None = None
        self._proved = False
        self._read_size = _READ_LITTLE
        self._backlog: deque[memoryview] = deque()
        self._backlog_size = 0

    def on_opened(self) -> None:
        """Both sides have proved the secret."""

    def on_frame(self, frame: Frame) -> None:
        """A frame came."""

    def on_nonsense(self, error: WireError) -> None:
        """The peer does not know the secret, or the stream was tampered with. The connection is aborted after this."""

    def on_room(self) -> None:
        """The connection is not full any more."""

    def on_closed(self, error: Exception | None) -> None:
        """The connection is gone. Called once, if it was ever begun, and never from within another call of ours."""

    def begin(self, connected: socket.socket) -> None:
        """Take over a connected socket."""
        connected.setblocking(False)
        with suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connected
        # By its number: a selector writes out in words, for nobody, what it does not know yet, which takes longer than
        # adding it.
        self._loop.add_reader(connected.fileno(), self._readable)
        self._shake_hands()
        self._answer()

    def send(self, header: bytes, blob: bytes = b"", *, urgent: bool = True) -> None:
        """Send a message; `header` is encoded. What is not urgent leaves with the next message that is."""
        if self.closing or self._socket is None:
            return
        self._pending.append(self.session.seal(header, blob))
        if blob:
            self.flush()
        elif urgent and self._flushing is None:
            self._flushing = self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Hand everything to the kernel, as far as it takes it."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        if self._shield is not None and not self._shield.open:
            return
        if self._pending and self._socket is not None:
            pending, self._pending = self._pending, []
            data = pending[0] if len(pending) == 1 else b"".join(pending)
            self._write(data if self._shield is None else self._shield.seal(data))

    def close(self) -> None:
        """End the connection after what was sent."""
        if self.closing:
            return
        self.flush()
        self.closing = True
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            if not self._backlog:
                self._end(None)

    def abort(self, error: Exception | None = None) -> None:
        """End the connection at once."""
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
        # Room for much costs time to get, so it is asked for only while much comes.
        self._read_size = _READ_MUCH if len(data) >= _READ_LITTLE else _READ_LITTLE
        try:
            self._receive(data)
        except Exception as error:
            # Nobody foresaw it, so nobody knows what of it was done: start over with a new connection.
            self.abort(error)
            raise

    def _receive(self, data: bytes) -> None:
        try:
            if self._shield is not None:
                data = self._shield.receive(data)
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
        """What the encryption wants sent, and, once it stands, what waited for it."""
        if self._shield is not None:
            if wanted := self._shield.take():
                self._write(wanted)
            if self._pending and self._flushing is None:
                self._flushing = self._loop.call_soon(self.flush)

    def _answer(self) -> None:
        """What the opening wants sent."""
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
