"""An agent's client of the rendezvous: `MemberClient`, the sockets and files around the pure state machine `Member`.

The supervisor's client is `SupervisorClient` in supervisor_client.py.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..log_stream.tailer import Tailer
from ..protocol.channel import Channel
from ..protocol.framing import ClientSession, Frame, Hello, WireError, encode
from ..protocol.messages import GangSettings, Message, MessageError, unpack_addresses
from .member import (
    FENCED,
    REFUSED,
    Follow,
    HangUp,
    HoldWorkers,
    Leave,
    Member,
    MemberAction,
    Prepare,
    ReleaseWorkers,
    SendToLeader,
    Start,
    Stop,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol.tls import TlsSession

OPENING_TIME = 5.0
"""Seconds a connection may take to be opened and authenticated."""

RETRY_FIRST, RETRY_MOST = 0.02, 1.0

log = logging.getLogger("flowlite.member")


class PrepareError(Exception):
    """A node cannot take part. The text says what was found and what to do; the leader adds the name of the node.

    Attributes:
        passing: Whether another attempt may succeed with the same nodes.
        sick: Whether the machine is broken, so that another attempt may succeed without it.
    """

    def __init__(self, text: str, *, passing: bool = False, sick: bool = False) -> None:
        super().__init__(text)
        self.passing = passing
        self.sick = sick


class Refused(Exception):
    """The leader refused this agent (older attempt, not in the roster, id taken). Its workers are stopped."""


class Fenced(Exception):
    """The leader was silent for too long; this node has stopped its workers."""


class StopListener(Protocol):
    """Holds the workers of a node until the gang has agreed on the step at which it stops."""

    def hold(self, seconds: float, hold: int = 0, *, growing: bool = False) -> None:
        """Lets each worker wait in its next call of `should_stop()`, at most this many seconds.

        Args:
            seconds: How long they wait.
            hold: How many holds there were before.
            growing: Whether it is only so that the gang may grow.
        """

    def go_on(self, call: int) -> None:
        """Lets waiting workers continue. `should_stop()` is True from this call on; 0: it stays False."""

    def asked_to_end(self) -> None:
        """Called before the workers are stopped because a node of the gang is being taken away."""


class NodeActions(Protocol):
    """What the rendezvous needs from its node. Implemented by the agent."""

    def facts(self) -> dict[str, Any]:
        """Returns the facts that a join reports; called at every join.

        They are address, hostname, python, python_minor, code, gpus {"count","kind"}, clock (Unix, read now),
        disk_free_bytes, disk_total_bytes and agent.
        """

    async def prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Prepares the node to start workers. Called once, and cancelled if the gang is stopped meanwhile.

        Args:
            order: master_addr, master_port, and volume_token: the leader's node writes probe files of that name, and
                the other nodes wait for them.

        Returns:
            Facts about the node, for the leader to compare and record.

        Raises:
            PrepareError: The node cannot take part.
        """

    async def start(self, go: Mapping[str, Any]) -> None:
        """Starts the workers and returns. Called once at most. An exception ends the gang with outcome "error".

        Args:
            go: rank (of this node), addresses (by rank), master_addr, master_port.
        """

    async def stop(self, reason: str, grace: float) -> None:
        """Stops all workers. Returns when none is left and each was reported. Called at most once, perhaps before
        `start`."""

    def streams(self) -> Mapping[str, Path]:
        """Returns the files to follow, by the name "<rank>.<stream>", with stream out, err or result.

        It is called often, so it must be cheap. A file may be created later. A `result` is sent only after the end of
        its worker was reported.
        """


class MemberClient:
    """One node's part in the rendezvous, over TCP to the leader. The leader's own agent uses it, too."""

    def __init__(
        self,
        settings: GangSettings,
        secret: bytes,
        instance: str,
        incarnation: str,
        leader: tuple[str, int],
        node: NodeActions,
        new_tls: Callable[[], TlsSession] | None = None,
        on_silence: Callable[[bool], None] | None = None,
        stop_listener: StopListener | None = None,
    ) -> None:
        """
        Args:
            incarnation: Random text, made once per agent process; it tells a rejoin from a second agent with the same
                id.
            leader: Address and port of the leader's rendezvous.
            new_tls: Makes the TLS session of each connection; None if the leader does not encrypt.
            on_silence: Called when the leader is heard again (False), and when it becomes silent (True).
            stop_listener: Lets workers wait for a decision to stop; None if no worker ever calls `should_stop()`.
        """
        self._settings = settings
        self._secret = secret
        self._instance = instance
        self._leader = leader
        self._node = node
        self._new_tls = new_tls
        self._on_silence = on_silence
        self._stop_listener = stop_listener
        self._silent = True
        self._machine = Member(settings, instance, incarnation, time.monotonic())
        self._follower = Tailer(
            self._machine.sender, node.streams, self._send_chunk, self._tell_emptied
        )
        self._connection: _LeaderConnection | None = None
        self._finished: asyncio.Future[Leave] | None = None
        self._following: asyncio.Handle | None = None
        self._work: dict[str, asyncio.Task[None]] = {}
        self._trouble = ""

    @property
    def outcome(self) -> str | None:
        """How the gang ended, once the leader has sent it; else None."""
        return self._machine.outcome

    @property
    def reason(self) -> str:
        """One line for users that goes with the outcome."""
        return self._machine.reason

    @property
    def silence(self) -> float:
        """Seconds since the last message of the leader."""
        return self._machine.silence(time.monotonic())

    async def run(self) -> None:
        """Takes part until released. No worker is left when this returns or raises.

        Raises:
            Refused: The leader refused this agent.
            Fenced: The leader did not answer within `join_timeout`, or was silent for `fence_after`.
        """
        self._finished = asyncio.get_running_loop().create_future()
        dialing = asyncio.create_task(self._keep_dialing())
        ticking = asyncio.create_task(self._keep_ticking())
        try:
            leave = await self._finished
        finally:
            for task in (dialing, ticking, *self._work.values()):
                task.cancel()
            if self._following is not None:
                self._following.cancel()
            if self._connection is not None:
                self._connection.close()
            self._follower.close()
            await asyncio.gather(dialing, ticking, *self._work.values(), return_exceptions=True)
        if leave.how == REFUSED:
            raise Refused(leave.reason)
        if leave.how == FENCED:
            trouble = f" (last: {self._trouble})" if self._trouble else ""
            raise Fenced(f"{leave.reason}: {self._leader[0]}:{self._leader[1]}{trouble}")

    def report_worker(self, body: Mapping[str, Any]) -> None:
        """Reports the end of a worker and its process group at once; `body` as in `node/protocol/messages.py`."""
        sizes = self._follower.finish(body["rank"], body["sizes"])
        self._act(self._machine.worker_ended({**body, "sizes": sizes}))

    def halt(self, kind: str, reason: str) -> None:
        """Asks the leader to stop the gang; `kind` is "deadline", "preempted", "cancel" or "error"."""
        self._act(self._machine.halt(kind, reason))

    def vanish(self, kind: str, reason: str, seconds: float) -> None:
        """Reports that this node will be preempted, or reach its deadline, in this many seconds.

        Args:
            kind: "preempted" or "deadline".
        """
        self._act(self._machine.vanish(kind, reason, seconds))

    def stoppable(self) -> None:
        """Reports that a process of this node calls `should_stop()` or listens for SIGUSR2."""
        self._act(self._machine.stoppable())

    def calls(self, callers: int, waiting: list[int], listeners: int = 0, hold: int = 0) -> None:
        """Answers `StopListener.hold`, and is called again whenever the numbers change.

        Args:
            callers: How many processes call `should_stop()`.
            waiting: The numbers of the calls in which processes wait.
            listeners: How many processes got SIGUSR2 instead.
            hold: The number of the hold.
        """
        self._act(self._machine.calls(callers, waiting, listeners, hold))

    def notice(self, text: str, kind: str = "warning") -> None:
        """Sends a notice for users, while the run goes on; `kind` as in `messages.NOTICES`."""
        self._act(self._machine.notice(text, kind))

    # The connection.

    async def _keep_dialing(self) -> None:
        delay = RETRY_FIRST
        while True:
            connection = _LeaderConnection(self)
            try:
                async with asyncio.timeout(OPENING_TIME):
                    await connection.open(self._leader)
            except (OSError, TimeoutError, WireError) as error:
                self._trouble = str(error) or type(error).__name__
                connection.abort()
            else:
                await connection.closed
                delay = RETRY_FIRST
            # Jitter, so that the members of a gang do not dial all at once. (`random` would cost half a megabyte.)
            await asyncio.sleep(delay * (0.5 + os.urandom(1)[0] / 512))
            delay = min(RETRY_MOST, delay * 2)

    def _opened(self, connection: _LeaderConnection) -> None:
        self._connection = connection
        self._act(self._machine.connected(self._node.facts()))

    def _closed(self, connection: _LeaderConnection) -> None:
        if connection is self._connection:
            self._connection = None
            self._act(self._machine.disconnected())

    def _received(self, connection: _LeaderConnection, message: Message) -> None:
        if connection is not self._connection:
            return
        try:
            self._act(self._machine.receive(message, time.monotonic()))
        except (MessageError, KeyError, TypeError, ValueError) as error:
            self._trouble = str(error)
            log.warning("the leader sent what it should not: %s", error)
            connection.abort()

    async def _keep_ticking(self) -> None:
        while True:
            await asyncio.sleep(min(self._settings.beat, 0.25))
            self._act(self._machine.tick(time.monotonic()))
            silent = self._machine.silent(time.monotonic())
            if silent is not self._silent and self._on_silence is not None:
                self._on_silence(silent)
            self._silent = silent

    # Orders.

    def _act(self, actions: list[MemberAction]) -> None:
        for action in actions:
            match action:
                case SendToLeader(message):
                    if self._connection is not None:
                        self._connection.send(encode(message))
                case Follow():
                    self._follow_soon()
                case Prepare(order):
                    self._begin("prepare", self._prepare(order))
                case Start(go):
                    self._begin("start", self._start(go))
                case Stop(reason, grace, preempted):
                    if preempted and self._stop_listener is not None:
                        self._stop_listener.asked_to_end()
                    self._begin("stop", self._stop(reason, grace))
                case HoldWorkers(seconds, hold, growing):
                    self._hold(seconds, hold, growing)
                case ReleaseWorkers(call):
                    if self._stop_listener is not None:
                        self._stop_listener.go_on(call)
                case HangUp():
                    if self._connection is not None:
                        self._connection.abort()
                case Leave():
                    if self._finished is not None and not self._finished.done():
                        self._finished.set_result(action)

    def _hold(self, seconds: float, hold: int, growing: bool) -> None:
        if self._stop_listener is not None:
            self._stop_listener.hold(seconds, hold, growing=growing)
        else:
            self.calls(0, [], hold=hold)

    def _begin(self, name: str, order: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(order)
        self._work[name] = task
        task.add_done_callback(self._worked)

    def _worked(self, task: asyncio.Task[None]) -> None:
        """An unexpected exception in an order ends the agent, and with it its workers."""
        if not task.cancelled() and (error := task.exception()) is not None:
            assert self._finished is not None
            if not self._finished.done():
                self._finished.set_exception(error)

    async def _prepare(self, order: Mapping[str, Any]) -> None:
        try:
            facts = await self._node.prepare(order)
        except PrepareError as error:
            found = self._machine.unprepared(str(error), passing=error.passing, sick=error.sick)
            self._act(found)
        except Exception as error:
            log.exception("prepare failed")
            self._act(
                self._machine.unprepared(f"preparing failed: {type(error).__name__}: {error}")
            )
        else:
            self._act(self._machine.prepared(facts))

    async def _start(self, go: Mapping[str, Any]) -> None:
        try:
            addresses = unpack_addresses(go)
            if len(addresses) != self._settings.nodes:
                raise MessageError(
                    f"GO has {len(addresses)} addresses for {self._settings.nodes} nodes"
                )
            ports = {name: go[name] for name in ("rank", "master_addr", "master_port")}
            await self._node.start({**ports, "addresses": addresses})
        except Exception as error:
            log.exception("start failed")
            self._act(
                self._machine.unprepared(f"workers cannot start: {type(error).__name__}: {error}")
            )
        else:
            self._act(self._machine.started())
            self._follow_soon()

    async def _stop(self, reason: str, grace: float) -> None:
        if (preparing := self._work.get("prepare")) is not None:
            preparing.cancel()
            await asyncio.wait([preparing])
        if (starting := self._work.get("start")) is not None:
            await asyncio.wait([starting])
        await self._node.stop(reason, grace)
        self._act(self._machine.stopped())

    # Streams.

    def _follow_soon(self) -> None:
        if self._following is not None:
            self._following.cancel()
        self._following = asyncio.get_running_loop().call_soon(self._follow)

    def _follow(self) -> None:
        self._following = None
        if self._connection is None or self._connection.full or self._machine.left is not None:
            return
        if self._follower.advance():
            self._follow_soon()
        else:
            loop = asyncio.get_running_loop()
            self._following = loop.call_later(self._follower.delay, self._follow)

    def _send_chunk(self, rank: int, stream: str, offset: int, block: bytes) -> bool:
        connection = self._connection
        if connection is None:
            return False
        header = {
            "type": "chunk",
            "task": self._settings.task,
            "attempt": self._settings.attempt,
            "gen": self._machine.sender.generation,
            "rank": rank,
            "stream": stream,
            "offset": offset,
            "time": time.time(),
        }
        connection.send(encode(header), block)
        return not connection.full

    def _tell_emptied(self, rank: int, stream: str) -> None:
        what = {"out": "standard output", "err": "standard error"}.get(
            stream, f"output of {stream}="
        )
        self.notice(
            f"rank {rank} has emptied the file of its {what}, so lines are lost: `> /dev/stdout` and `tee /dev/stderr` "
            "open it anew. Write `>&1`, `>&2` or `tee -a`"
        )


class _LeaderConnection(Channel):
    """One connection to the leader. A client may have several, one after another."""

    def __init__(self, link: MemberClient) -> None:
        settings = link._settings
        hello = Hello(settings.task, "member", link._instance, settings.attempt)
        tls_session = link._new_tls() if link._new_tls else None
        super().__init__(ClientSession(link._secret, hello), tls_session)
        self._link = link
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    async def open(self, leader: tuple[str, int]) -> None:
        """Connects, and authenticates in both directions."""
        family = socket.AF_INET6 if ":" in leader[0] else socket.AF_INET
        dialed = socket.socket(family, socket.SOCK_STREAM)
        dialed.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(dialed, leader)
        except BaseException:
            dialed.close()
            raise
        self.begin(dialed)
        await self._opened

    def on_opened(self) -> None:
        if self._opened.done():
            # `open` has given up in the meantime, and its caller ends the connection.
            return
        self._opened.set_result(None)
        self._link._opened(self)

    def on_frame(self, frame: Frame) -> None:
        self._link._received(self, frame.message)

    def on_nonsense(self, error: WireError) -> None:
        self._link._trouble = str(error)
        log.warning("what answers at the leader's address does not hold the secret: %s", error)

    def on_room(self) -> None:
        self._link._follow_soon()

    def on_closed(self, error: Exception | None) -> None:
        if not self._opened.done():
            self._opened.set_exception(error or ConnectionResetError("the leader hung up"))
            self._opened.exception()  # mark it as retrieved: after a timeout, nothing waits for it
        if not self.closed.done():
            self.closed.set_result(None)
        self._link._closed(self)
