"""The supervisor's client of the rendezvous: `SupervisorClient`, over any stream that reaches the leader's port.

Usage (kinds of events: see `node/protocol/messages.py`):

    client = SupervisorClient(task=..., attempt=..., secret=..., dial=dial, offsets=sizes_of_files, on_chunk=append)
    async for event in client.events():
        ...                                    # "ended" is the last event; once the streams have the `sizes` of the
    await client.release()                     # worker events, too, release the agents
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ..log_stream.flow_control import stream_name
from ..protocol.framing import ClientSession, Frame, Hello, NotAMessage, WireError, encode
from ..protocol.message_check import TO_SUPERVISOR, check
from ..protocol.messages import STREAMS, Message, MessageError, pack_offsets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol.tls import TlsSession

Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
OnChunk = Callable[[int, int, str, int, float, bytes], None]

OPENING_TIME = 10.0
"""Seconds a connection may take to be opened and authenticated; it may go through a tunnel."""

RELEASE_TIME = 5.0
RETRY_FIRST, RETRY_MOST = 0.02, 1.0
READ = 256 * 1024

ACKNOWLEDGE_BYTES = 128 * 1024
ACKNOWLEDGE_DELAY = 0.005
"""Chunks are acknowledged together, after this many bytes or this many seconds."""

log = logging.getLogger("flowlite.supervisor")


class LeaderUnreachable(Exception):
    """The leader was silent for `silence` seconds: probe its node. Call `events()` again to continue."""


class LeaderRefused(Exception):
    """The leader refused this supervisor, for example because it is of another attempt."""


class _ChunkNotStored(Exception):
    """`on_chunk` raised an exception, which is the argument."""


class SupervisorClient:
    """Follows one attempt of a gang. It reconnects by itself, and resumes events by number and streams by offset.

    Attributes:
        phase: The last known phase of the gang (`messages.PHASES`), or "" before the first contact.
        attached: Whether it is attached to the leader now.
        last_seq: Number of the last event that `events` has yielded.
        trouble: What went wrong with the last connection, for users; "" if nothing did.
    """

    def __init__(
        self,
        *,
        task: str,
        attempt: int,
        secret: bytes,
        dial: Dial,
        on_chunk: OnChunk,
        offsets: Callable[[], Mapping[str, int]],
        after: int = 0,
        streams: Iterable[str] = STREAMS,
        silence: float = 15.0,
        beat: float = 1.0,
        new_tls: Callable[[], TlsSession] | None = None,
    ) -> None:
        """
        Args:
            dial: Opens a stream to the leader's port; may raise OSError (retried with back-off).
            on_chunk: (rank, node, stream, offset, time, bytes). Called in order for each stream, without gap or overlap
                from the `offsets()` at attach. It must have written the bytes when it returns, because they are
                acknowledged then.
            offsets: Returns how many bytes of each stream ("<rank>.<stream>") are written here; streams not named
                start at 0. Called at every attach.
            after: Number of the last event already handled; 0 for all.
            streams: The kinds of streams to collect ("out", "err", "result"); others stay on the node.
            silence: Seconds without a message of the leader until `LeaderUnreachable`.
            beat: Seconds between heartbeats to the leader.
            new_tls: Makes the TLS session of each connection; None if the leader does not encrypt.
        """
        self._task = task
        self._attempt = attempt
        self._secret = secret
        self._dial = dial
        self._on_chunk = on_chunk
        self._offsets = offsets
        self._streams = tuple(streams)
        self._silence = silence
        self._beat = beat
        self._new_tls = new_tls
        self._tls_session: TlsSession | None = None
        self._incoming: deque[dict[str, Any] | Exception | None] = deque()
        self._news = asyncio.Event()
        self._received_seq = after
        self._orders: dict[str, Message] = {}
        self._session: ClientSession | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._running: asyncio.Task[None] | None = None
        self._heard = self._word = time.monotonic()
        self._ahead = math.inf
        self._kept: dict[str, int] = {}
        self._kept_bytes = 0
        self._acknowledging: asyncio.TimerHandle | None = None
        self._released = False
        self.last_seq = after
        self.phase = ""
        self.attached = False
        self.trouble = ""

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yields events in order, each once; ends after `release` or `close`. "age" in each is its age in seconds.

        From the first call on until `close`, chunks are passed to `on_chunk` as they arrive, also between two events.

        Raises:
            LeaderUnreachable: `silence` seconds without contact. The client continues to dial; call again to continue.
            LeaderRefused: The leader refused this supervisor (another attempt).
            MessageError: The leader is authenticated, but sent an invalid message.
        """
        self.start()
        self._heard = max(self._heard, time.monotonic() - self._silence / 2)
        while True:
            patience = self._heard + self._silence - time.monotonic()
            if not self._incoming and patience <= 0:
                self._heard = time.monotonic()
                trouble = f" (last: {self.trouble})" if self.trouble else ""
                raise LeaderUnreachable(
                    f"no word from the leader for {self._silence:.0f} s{trouble}"
                )
            if not self._incoming:
                self._news.clear()
                # Wait for an event, not for an item of a queue, so that a cancellation loses no item. (And not with
                # `wait_for`, which may swallow the cancellation before Python 3.12.)
                with suppress(TimeoutError):
                    async with asyncio.timeout(patience):
                        await self._news.wait()
                continue
            item = self._incoming[0]
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            self._incoming.popleft()
            self.last_seq = item["seq"]
            yield item

    def start(self) -> None:
        """Begin to dial, unless that has begun. `events` calls it, too."""
        if self._running is None:
            self._heard = time.monotonic()
            self._running = asyncio.create_task(self._keep_attached())

    @property
    def over(self) -> bool:
        """Whether the client has ended by itself: agents were released, it was refused, or a chunk was not written."""
        return self._running is not None and self._running.done()

    @property
    def silence(self) -> float:
        """Seconds since something came from the leader."""
        return time.monotonic() - self._word

    async def stop(self, kind: str, reason: str) -> None:
        """Ask the leader to stop the gang; `kind` as in `messages.STOP_OUTCOMES`. Repeated after reconnects."""
        self._order("stop", {"type": "stop", "kind": kind, "reason": reason})

    async def grow(self, reason: str) -> None:
        """Have the workers asked to stop so that the gang may grow; "" asks them no more. Repeated after reconnects."""
        self._order("grow", {"type": "grow", "reason": reason})

    async def lost(self, instance: str, why: str, *, answers: bool = False) -> None:
        """Confirm that a suspected node is lost, from a second source. The leader ignores it if the node is back.

        Args:
            answers: Whether the machine answers, and only its agent is gone.
        """
        order = {"type": "lost", "instance": instance, "why": why, "answers": answers}
        self._order(f"lost {instance}", order)

    async def release(self) -> None:
        """Release all agents, after everything is collected. Returns when the leader has hung up, or after 5 s."""
        self.start()
        self._order("release", {"type": "release"})
        assert self._running is not None
        # It ends when the leader has hung up after the release, or has failed.
        await asyncio.wait([self._running], timeout=RELEASE_TIME)
        if not self._released:
            log.warning("the leader did not confirm the release")
        await self.close()

    async def close(self) -> None:
        """Disconnect without releasing the agents. May be called again."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        self._hang_up()
        self._put(None)

    # The connection.

    async def _keep_attached(self) -> None:
        delay = RETRY_FIRST
        while True:
            try:
                await self._attend()
            except (
                OSError,
                TimeoutError,
                WireError,
                asyncio.IncompleteReadError,
            ) as error:
                self.trouble = str(error) or type(error).__name__
            except _ChunkNotStored as error:
                self._fail(error.args[0])
                return
            except Exception as error:
                self._fail(error)
                return
            if self.attached:
                delay = RETRY_FIRST
            self._hang_up()
            if self._released:
                break
            await asyncio.sleep(delay)
            delay = min(RETRY_MOST, delay * 2)
        self._put(None)

    def _fail(self, error: Exception) -> None:
        """Pass an error that a retry cannot cure (refused, or a full disk) to `events`, and disconnect."""
        self._put(error)
        self._hang_up()

    async def _attend(self) -> None:
        """Connect, attach, and handle messages until the connection ends."""
        async with asyncio.timeout(OPENING_TIME):
            reader, self._writer = await self._dial()
            await self._shake_hands(reader)
            hello = Hello(self._task, "supervisor", "supervisor", self._attempt)
            session = ClientSession(self._secret, hello)
            self._flush(session)
            frames: list[Frame] = []
            while not session.authenticated:
                frames = session.receive(await self._read(reader))
                self._flush(session)
        self._session = session
        self._send({"type": "attach", "after": self._received_seq})
        offsets = dict(self._offsets())
        self._send({"type": "pull", **pack_offsets(offsets), "streams": list(self._streams)})
        for order in self._orders.values():
            self._send(order)
        beating = asyncio.create_task(self._keep_beating())
        try:
            while True:
                for frame in frames:
                    self._take(frame, offsets)
                frames = session.receive(await self._read(reader))
        except NotAMessage as error:
            # The frame is authenticated, so the leader has sent it, and a retry would not help.
            raise MessageError(str(error)) from None
        finally:
            beating.cancel()

    async def _shake_hands(self, reader: asyncio.StreamReader) -> None:
        """Do the TLS handshake, if the leader encrypts."""
        self._tls_session = tls_session = self._new_tls() if self._new_tls else None
        while tls_session is not None and not tls_session.open:
            assert self._writer is not None
            self._writer.write(tls_session.take())
            tls_session.receive(await self._read_some(reader))
        if tls_session is not None and self._writer is not None:
            self._writer.write(tls_session.take())

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        tls_session = self._tls_session
        if tls_session is None:
            return await self._read_some(reader)
        # The bytes read may be less than a TLS record.
        while not (plain := tls_session.receive(await self._read_some(reader))):
            if (wanted := tls_session.take()) and self._writer is not None:
                self._writer.write(wanted)
        return plain

    async def _read_some(self, reader: asyncio.StreamReader) -> bytes:
        data = await reader.read(READ)
        if not data:
            raise ConnectionResetError("the leader hung up")
        if self._session is not None:
            # A part of a frame is a sign of life, too. A slow network takes a minute for a chunk of logs; a connection
            # that is given up meanwhile throws it away, and the next one begins with the same chunk.
            self._heard = self._word = time.monotonic()
        return data

    def _write(self, data: bytes) -> None:
        if self._writer is not None:
            self._writer.write(data if self._tls_session is None else self._tls_session.seal(data))

    def _flush(self, session: ClientSession) -> None:
        if session.outgoing:
            self._write(session.outgoing)
            session.outgoing = b""

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            self._send({"type": "beat"})
            if time.monotonic() - self._heard > self._silence / 2:
                # Perhaps only this connection is dead, and not the leader: dial again.
                self._hang_up()

    def _hang_up(self) -> None:
        self._session = None
        self.attached = False
        if self._acknowledging is not None:
            self._acknowledging.cancel()
            self._acknowledging = None
        self._kept.clear()
        self._kept_bytes = 0
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _send(self, message: Message) -> None:
        if self._session is not None and self._writer is not None:
            stamped = {**message, "task": self._task, "attempt": self._attempt}
            self._write(self._session.seal(encode(stamped)))

    def _order(self, name: str, message: Message) -> None:
        """Send an order now and after every reconnect, until an event shows its effect."""
        self._orders[name] = message
        self._send(message)

    # Incoming messages.

    def _put(self, item: dict[str, Any] | Exception | None) -> None:
        """Queue an event for `events`, or the error with which it ends; None ends it without one."""
        self._incoming.append(item)
        self._news.set()

    def _take(self, frame: Frame, offsets: dict[str, int]) -> None:
        kind = check(frame.message, TO_SUPERVISOR, self._task)
        self._heard = self._word = time.monotonic()
        age = self._age(frame.message.get("steady"))
        if kind == "chunk":
            self._take_chunk(frame.message, frame.blob, offsets)
        elif kind == "event":
            self._take_event({**frame.message["event"], "age": age})
        elif kind == "state":
            self.attached = True
            self.trouble = ""
            self.phase = frame.message["phase"]
        elif kind == "release":
            self._released = True
        elif kind == "refuse":
            raise LeaderRefused(frame.message["reason"])

    def _age(self, steady: float | None) -> float:
        """The estimated age of a message, in seconds, from the leader's monotonic clock at the event.

        The offset between the two clocks is estimated by the smallest difference seen so far, as if that message had
        taken no time.
        """
        if steady is None:
            return 0.0
        ahead = self._word - steady
        self._ahead = min(self._ahead, ahead)
        return ahead - self._ahead

    def _take_event(self, event: dict[str, Any]) -> None:
        if event["seq"] != self._received_seq + 1:
            if event["seq"] <= self._received_seq:
                return
            raise MessageError(f"event {self._received_seq + 1} is missing before {event['seq']}")
        self._received_seq = event["seq"]
        kind = event["kind"]
        self.phase = _PHASE_AFTER.get(kind, self.phase or "gathering")
        if kind in ("stopping", "ended"):
            self._orders.pop("stop", None)
        if kind in ("lost", "back"):
            self._orders.pop(f"lost {event['instance']}", None)
        self._put(event)

    def _take_chunk(self, chunk: Message, blob: bytes, offsets: dict[str, int]) -> None:
        rank, stream, offset = chunk["rank"], chunk["stream"], chunk["offset"]
        name = stream_name(rank, stream)
        if offset != offsets.get(name, 0):
            raise MessageError(
                f"a chunk of {name} begins at {offset}, expected {offsets.get(name, 0)}"
            )
        try:
            self._on_chunk(rank, chunk["node"], stream, offset, chunk["time"], blob)
        except MessageError:
            raise
        except Exception as error:
            raise _ChunkNotStored(error) from error
        offsets[name] = self._kept[name] = offset + len(blob)
        self._kept_bytes += len(blob)
        if self._kept_bytes >= ACKNOWLEDGE_BYTES:
            self._acknowledge()
        elif self._acknowledging is None:
            loop = asyncio.get_running_loop()
            self._acknowledging = loop.call_later(ACKNOWLEDGE_DELAY, self._acknowledge)

    def _acknowledge(self) -> None:
        if self._acknowledging is not None:
            self._acknowledging.cancel()
            self._acknowledging = None
        if self._kept:
            self._send({"type": "ack", "offsets": self._kept})
            self._kept = {}
            self._kept_bytes = 0


_PHASE_AFTER = {"preparing": "preparing", "go": "running", "stopping": "stopping", "ended": "ended"}
