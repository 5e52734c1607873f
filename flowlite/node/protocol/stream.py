"""An authenticated byte stream from a member to the leader, such as the one to a volume that the leader serves.

The connection opens as every connection does (`framing.py`), inside TLS with the certificate of the attempt where the
rendezvous is encrypted. The leader then sends one empty frame to a peer that it admits. After that it is a plain
stream, to an `sftp-server` for instance.
"""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections.abc import Callable

from .framing import ClientSession, Frame, Hello, ServerSession, Session, WireError, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..config.agent_config import AgentConfig, AttemptPaths
    from .tls import TlsSession

OPENING_SECONDS = 10.0
_BLOCK = 1 << 18
_AHEAD = 1 << 20
_LONGEST_LINE = 4096


class Stream:
    """One end of a connection. It gives and takes plain bytes, and encrypts them where there is a TLS session."""

    def __init__(self, network: socket.socket, tls_session: TlsSession | None) -> None:
        self.network = network
        self._tls_session = tls_session
        self._plain = b""
        self._ended = False
        self._until = time.monotonic() + OPENING_SECONDS
        network.settimeout(OPENING_SECONDS)
        if tls_session is not None:
            while not tls_session.open:
                self._flush()
                if not tls_session.open:
                    self._plain += tls_session.receive(self._from_network())
            self._flush()

    def read_exactly(self, size: int) -> bytes:
        """Reads exactly `size` bytes of the opening. Raises WireError, TimeoutError."""
        while len(self._plain) < size:
            self._fill()
        taken, self._plain = self._plain[:size], self._plain[size:]
        return taken

    def read_line(self) -> bytes:
        """Reads a line of the opening, without its newline."""
        while b"\n" not in self._plain:
            if len(self._plain) > _LONGEST_LINE:
                raise WireError("a first line without end")
            self._fill()
        line, _, self._plain = self._plain.partition(b"\n")
        return line

    def authenticate(self, session: Session) -> None:
        """Opens the connection. Raises WireError: the other end does not know the secret; TimeoutError."""
        while True:
            if session.outgoing:
                self.send(session.outgoing)
                session.outgoing = b""
            if session.authenticated:
                return
            session.open(self.some())

    def read_frame(self, session: Session) -> Frame:
        """Reads the next frame of a session that is authenticated. Raises WireError, TimeoutError."""
        while (frame := session.next_frame()) is None:
            session.open(self.some())
        return frame

    def end_frames(self, session: Session) -> None:
        """Goes on as a plain stream, after the frames that were read."""
        self._plain = session.rest() + self._plain

    def take_rest(self) -> bytes:
        """Takes the bytes that were received and not read yet."""
        rest, self._plain = self._plain, b""
        return rest

    def go_on(self, seconds: float | None = None) -> None:
        """Ends the time limit of the opening: each read and each send now waits for so long at most; None: for ever."""
        self._until = math.inf
        self.network.settimeout(seconds)

    def send(self, data: bytes) -> None:
        """Sends data of the opening."""
        self.network.sendall(
            self._tls_session.seal(data) if self._tls_session is not None else data
        )

    def bridge(self, source: int, sink: int) -> None:
        """Copies bytes from `source` to the network and from the network to `sink`, until one side ends."""
        self.network.setblocking(False)
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        inward, outward = self._plain, b""
        while True:
            reading: list[int] = []
            writing: list[int] = []
            number = self.network.fileno()
            if len(outward) < _AHEAD:
                reading.append(source)
            if len(inward) < _AHEAD and not self._ended:
                reading.append(number)
            if inward:
                writing.append(sink)
            if outward:
                writing.append(number)
            if self._ended and not inward:
                return
            ready, free = _wait(reading, writing)
            try:
                if source in ready:
                    data = os.read(source, _BLOCK)
                    if not data:
                        return
                    outward += (
                        self._tls_session.seal(data) if self._tls_session is not None else data
                    )
                if number in ready:
                    inward += self._receive()
                    if self._tls_session is not None:
                        outward += self._tls_session.take()
                if sink in free:
                    inward = inward[os.write(sink, inward) :]
                if number in free or (outward and number not in writing):
                    outward = outward[self.network.send(outward) :]
            except BlockingIOError:
                continue
            except (OSError, WireError):
                return

    def some(self) -> bytes:
        """Returns the bytes that are here; waits for some if there are none."""
        if not self._plain:
            self._fill()
        return self.take_rest()

    def _fill(self) -> None:
        data = self._from_network()
        if self._tls_session is None:
            self._plain += data
        else:
            self._plain += self._tls_session.receive(data)
            self._flush()

    def _from_network(self) -> bytes:
        # The socket's own limit is for each read, and a peer may send single bytes.
        if time.monotonic() > self._until:
            raise TimeoutError("the connection did not open in time")
        data = self.network.recv(_BLOCK)
        if not data:
            raise WireError("the other end hung up")
        return data

    def _receive(self) -> bytes:
        data = self.network.recv(_BLOCK)
        if not data:
            self._ended = True
            return b""
        return self._tls_session.receive(data) if self._tls_session is not None else data

    def _flush(self) -> None:
        assert self._tls_session is not None
        if waiting := self._tls_session.take():
            self.network.sendall(waiting)


def _wait(reading: list[int], writing: list[int]) -> tuple[set[int], set[int]]:
    """Waits for the descriptors and returns those that can be read and those that can be written.

    It uses poll, since `select` is limited to descriptors below 1024.
    """
    poll = select.poll()
    for number in {*reading, *writing}:
        wanted = select.POLLIN * (number in reading) | select.POLLOUT * (number in writing)
        poll.register(number, wanted)
    found = poll.poll()
    broken = select.POLLERR | select.POLLHUP | select.POLLNVAL
    return (
        {each for each, what in found if each in reading and what & (select.POLLIN | broken)},
        {each for each, what in found if each in writing and what & (select.POLLOUT | broken)},
    )


def dial(
    config: AgentConfig, paths: AttemptPaths, place: tuple[str, int], role: str, purpose: str
) -> Stream:
    """Connects to a listener of this gang, as a member of it. Raises OSError, WireError."""
    network = socket.create_connection(place, timeout=OPENING_SECONDS)
    try:
        network.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        network.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        stream = Stream(network, tls_session_of(config, paths))
        hello = Hello(config.task, role, config.instance, config.attempt, purpose)
        ask(stream, paths.secret.read_bytes(), hello)
    except BaseException as error:
        network.close()
        if isinstance(error, ConnectionError):
            raise WireError(f"the other end hung up: {error}") from error
        raise
    return stream


def tls_session_of(config: AgentConfig, paths: AttemptPaths) -> TlsSession | None:
    """Returns a session for a connection to the leader; None where the gang does not encrypt."""
    if not config.tls:
        return None
    from . import tls

    return tls.client(paths.certificate)()


def ask(stream: Stream, secret: bytes, hello: Hello) -> None:
    """Performs the member's side of the opening.

    Raises:
        WireError: The other end is not this gang's leader, or does not admit this member.
    """
    session = ClientSession(secret, hello)
    stream.authenticate(session)
    stream.read_frame(session)
    stream.end_frames(session)


def admit(stream: Stream, secret: bytes, expected: Hello, known: Callable[[str, str], bool]) -> str:
    """Performs the leader's side of the opening and returns the peer's purpose.

    Args:
        expected: The task, role and attempt of the peers that are admitted.
        known: Whether a peer is in the gang, and its purpose is served here.

    Raises:
        WireError: The peer is not a member of this gang. It was sent nothing that it could use.
    """
    session = ServerSession(secret, expected.task, (expected.role,))
    stream.authenticate(session)
    hello = session.hello
    if hello is None or hello.attempt != expected.attempt or not known(hello.peer, hello.purpose):
        raise WireError("it is not of this gang, or asks for what is not served here")
    stream.send(session.seal(encode({})))
    stream.end_frames(session)
    return hello.purpose
