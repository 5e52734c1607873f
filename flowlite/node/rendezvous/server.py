"""The rendezvous service in the leader's agent: sockets and timers around the pure state machine `Rendezvous`.

Usage (`master` chooses MASTER_PORT and listens on it; see `Master`):

    server = RendezvousServer(settings, secret, bind="127.0.0.1", master=master)
    port = await server.start()             # now leader.json can be written
    outcome = await server.run()            # returns after the release, or after `linger`
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..protocol.channel import Channel
from ..protocol.framing import Frame, ServerSession, WireError, encode
from ..protocol.messages import GangSettings, Message, MessageError
from ..system.accepting import allow_descriptors
from .actions import (
    Action,
    Close,
    CloseMaster,
    Finish,
    LeaderTime,
    OthersEnded,
    Peer,
    ProveMaster,
    Send,
    WorkerEnded,
)
from .leader import Rendezvous

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol.tls import TlsSession

OPENING_TIME = 5.0
"""Seconds that a peer has to authenticate."""

OPENING_CROWD = 256
"""Most connections that may be unauthenticated at a time; others wait in the kernel's queue."""

OPENING_PATIENCE = 2.5
"""Seconds after which a connection without a valid first frame is closed, while `OPENING_CROWD` is reached."""

BACKLOG = 4096

# Beyond one for each member: connections that open, streams that are followed, and those of the rest of the agent.
_OTHER_DESCRIPTORS = 512

log = logging.getLogger("flowlite.rendezvous")


class Master(Protocol):
    """Holds MASTER_PORT, the port of the workers' own rendezvous, until GO."""

    def prove(self) -> int:
        """Choose a free port, listen on it and return it. Members connect to it while they prepare.

        Called once, when all nodes have joined.

        Raises:
            OSError: No port can be had; the text says what to do.
        """

    def close(self) -> None:
        """Stop listening. Called just before GO, so that the port is free for the workers. May be called again."""


class CopiesForAll(Protocol):
    """Copies files that all nodes write. `RendezvousServer.copied` says that it has made its last copy."""

    def worker_ended(self, body: Mapping[str, Any]) -> None:
        """Called for every worker of another node that has ended."""

    def others_ended(self) -> None:
        """Called once the last copy need not wait for workers of other nodes any more."""


class RendezvousServer:
    """Serves the rendezvous of one gang in one attempt.

    Attributes:
        turned_away: How many connections were closed because they did not authenticate or sent invalid messages.
    """

    def __init__(
        self,
        settings: GangSettings,
        secret: bytes,
        *,
        bind: str,
        master: Master,
        new_tls: Callable[[], TlsSession] | None = None,
        copies: CopiesForAll | None = None,
    ) -> None:
        """
        Args:
            bind: The only address it listens on.
            new_tls: Makes the TLS session of each connection; None for a gang on one machine.
            copies: What this node copies for all nodes, for the last time when every worker has ended.
        """
        self._settings = settings
        self._secret = secret
        self._bind = bind
        self._master = master
        self._new_tls = new_tls
        self._copies = copies
        self._machine = Rendezvous(
            settings, self._now(), os.urandom(8).hex(), copies_for_all=copies is not None
        )
        self._listener: socket.socket | None = None
        self._accepting = False
        self._opening: dict[_Peer, float] = {}
        self._connections: dict[int, _Peer] = {}
        self._number = 0
        self._finished = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self.turned_away = 0

    @property
    def outcome(self) -> str | None:
        """One of `messages.OUTCOMES` from the moment the gang begins to end, else None."""
        return self._machine.outcome

    @property
    def reason(self) -> str:
        """One line for users that goes with the outcome."""
        return self._machine.reason

    @property
    def first_failure(self) -> Mapping[str, Any] | None:
        """The report of the worker whose failure stopped the gang; None if none did."""
        return self._machine.first_failure

    def silence_of(self, rank: int) -> float:
        """Seconds since the last message of a node."""
        return self._machine.silence_of(rank, self._now())

    async def start(self) -> int:
        """Start to listen. Returns the port."""
        descriptors = self._settings.nodes + _OTHER_DESCRIPTORS
        allow_descriptors(descriptors, most=descriptors)
        family = socket.AF_INET6 if ":" in self._bind else socket.AF_INET
        self._listener = socket.create_server((self._bind, 0), family=family, backlog=BACKLOG)
        self._listener.setblocking(False)
        self._accept(True)
        self._tick()
        return int(self._listener.getsockname()[1])

    async def run(self) -> str:
        """Serve until the supervisor releases the gang, or `linger` has passed after its end. Returns the outcome."""
        try:
            await self._finished.wait()
        finally:
            await self.close()
        return self.outcome or ""

    def notice(self, rank: int, kind: str, text: str) -> None:
        """Records a notice of the leader's own node at once."""
        self._act(self._machine.notice(rank, kind, text, self._now()))

    def copied(self) -> None:
        """Notes that the last copy for all nodes was made or has failed. A gang that ended well has waited for it."""
        self._act(self._machine.copied(self._now()))

    async def close(self) -> None:
        """Close every connection and the port at once, whatever the phase. May be called again."""
        self._accept(False)
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._ticker is not None:
            self._ticker.cancel()
        self._master.close()
        for connection in [*self._connections.values(), *self._opening]:
            connection.close()
        self._finished.set()
        # Run the loop once, so that data written just now is sent before the process may end.
        await asyncio.sleep(0)

    # Connections.

    def _accept(self, on: bool) -> None:
        """Accept new connections, or leave them in the kernel's queue."""
        if on == self._accepting or self._listener is None:
            return
        self._accepting = on
        loop = asyncio.get_running_loop()
        if on:
            loop.add_reader(self._listener, self._acceptable)
        else:
            loop.remove_reader(self._listener)

    def _acceptable(self) -> None:
        assert self._listener is not None
        while len(self._opening) < OPENING_CROWD:
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Probably out of file descriptors: wait for one rather than spin.
                log.warning("cannot accept a connection: %s", error)
                self._accept(False)
                return
            connection = _Peer(self, address[0])
            self._opening[connection] = time.monotonic()
            connection.begin(accepted)
        self._accept(False)

    def _authenticated(self, connection: _Peer) -> None:
        self._opening.pop(connection, None)
        self._accept(True)
        self._number += 1
        connection.number = self._number
        self._connections[self._number] = connection
        hello = connection.session.hello
        assert hello is not None
        connection.peer = Peer(hello.role, hello.peer, connection.address)

    def _received(self, connection: _Peer, frame: Frame) -> None:
        peer = connection.peer
        assert peer is not None
        try:
            if frame.message.get("type") == "chunk":
                self._pass_on(connection, frame)
            else:
                self._act(
                    self._machine.receive(connection.number, peer, frame.message, self._now())
                )
        except (MessageError, KeyError, TypeError, ValueError) as error:
            self._turn_away(connection, error)

    def _pass_on(self, connection: _Peer, frame: Frame) -> None:
        number = self._machine.relay(connection.number, frame.message, len(frame.blob), self._now())
        supervisor = self._connections.get(number or 0)
        if supervisor is not None:
            supervisor.send_chunk(encode(frame.message), frame.blob)

    def _turn_away(self, connection: _Peer, error: Exception) -> None:
        """Close a connection that did not authenticate or sent an invalid message. The gang is not affected."""
        self.turned_away += 1
        if self.turned_away <= 10 or self.turned_away % 1000 == 0:
            log.warning(
                "connection %d from %s turned away: %s", self.turned_away, connection.address, error
            )
        if not connection.session.authenticated:
            self._machine.turned_away(connection.address)
        connection.abort()

    def _lost(self, connection: _Peer) -> None:
        self._opening.pop(connection, None)
        if self._listener is not None:
            self._accept(True)
        if self._connections.pop(connection.number, None) is not None:
            self._act(self._machine.disconnected(connection.number, self._now()))

    # The state machine.

    def _now(self) -> LeaderTime:
        return LeaderTime(time.monotonic(), time.time())

    def _tick(self) -> None:
        if self._finished.is_set():
            return
        interval = min(self._settings.beat, 0.25)
        self._ticker = asyncio.get_running_loop().call_later(interval, self._tick)
        now = time.monotonic()
        full = len(self._opening) >= OPENING_CROWD
        for connection, born in list(self._opening.items()):
            limit = OPENING_PATIENCE if full and connection.session.hello is None else OPENING_TIME
            if now - born >= limit:
                self._turn_away(connection, WireError("it did not prove the secret in time"))
        if not self._accepting and len(self._opening) < OPENING_CROWD:
            self._accept(True)
        self._act(self._machine.tick(self._now()))

    def _act(self, actions: list[Action]) -> None:
        """Carry out the actions of the state machine, and those that follow from them."""
        for action in actions:
            match action:
                case Send(connections, message, urgent):
                    self._send(connections, message, urgent)
                case Close(number):
                    if (connection := self._connections.get(number)) is not None:
                        connection.close()
                case ProveMaster():
                    actions.extend(self._prove_master())
                case CloseMaster():
                    self._master.close()
                case WorkerEnded(body):
                    if self._copies is not None:
                        self._copies.worker_ended(body)
                case OthersEnded():
                    if self._copies is not None:
                        self._copies.others_ended()
                case Finish():
                    self._finished.set()

    def _send(self, connections: tuple[int, ...], message: Message, urgent: bool) -> None:
        header = encode(message)
        many = len(connections) > 1
        for number in connections:
            connection = self._connections.get(number)
            if connection is not None:
                connection.send(header, urgent=urgent and not many)
                if urgent and many:
                    # To schedule the flush of each of a thousand connections would take as long as the flush.
                    connection.flush()

    def _prove_master(self) -> list[Action]:
        try:
            port = self._master.prove()
        except OSError as error:
            return self._machine.master_failed(str(error), self._now())
        return self._machine.master_proved(port, self._now())


class _Peer(Channel):
    """The connection of one peer.

    While its write buffer is full, chunks wait in a queue of their own, so that events and heartbeats never queue
    behind logs.
    """

    session: ServerSession

    def __init__(self, server: RendezvousServer, address: str) -> None:
        tls_session = server._new_tls() if server._new_tls else None
        super().__init__(ServerSession(server._secret, server._settings.task), tls_session)
        self._server = server
        # None until a chunk has to wait.
        self._chunks: deque[tuple[bytes, bytes]] | None = None
        self.number = 0
        self.address = address
        self.peer: Peer | None = None

    def send_chunk(self, header: bytes, blob: bytes) -> None:
        """Send a chunk, or queue it while the write buffer is full."""
        if self.full:
            if self._chunks is None:
                self._chunks = deque()
            self._chunks.append((header, blob))
        else:
            self.send(header, blob)

    def on_opened(self) -> None:
        self._server._authenticated(self)

    def on_frame(self, frame: Frame) -> None:
        self._server._received(self, frame)

    def on_nonsense(self, error: WireError) -> None:
        self._server._turn_away(self, error)

    def on_room(self) -> None:
        while self._chunks and not self.full:
            self.send(*self._chunks.popleft())

    def on_closed(self, error: Exception | None) -> None:
        self._chunks = None
        self._server._lost(self)
