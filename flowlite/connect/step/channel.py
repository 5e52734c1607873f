"""A channel to one mux server (`node/helper/mux_server.py`), which carries many requests at a time over one command.

A `Channel` starts the command on its first use and reads its output in a thread. It detects when the mux server no
longer answers, and starts a new one on the next use. Connections of one process to the same node share it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from flowlite.connect.base import Connection
from flowlite.connect.bounded import MOST_JSON, parse_object, too_long
from flowlite.connect.pipe import Pipe
from flowlite.connect.ssh.quoting import readable
from flowlite.connect.step.stream import Stream
from flowlite.errors import NodeUnreachable
from flowlite.node.protocol import mux_framing

Lost = Callable[[int | None, str], NodeUnreachable | None]

OPEN_SECONDS = 120.0
"""Time for the mux server to start; a busy Slurm controller may take long."""
PING_SECONDS = 5.0
SILENT_SECONDS = 30.0
"""Time without an answer to a ping after which the connection is taken for broken."""
IDLE_SECONDS = 30.0
"""Time for which an unused channel stays open for the next user."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 8.0
# A connection that breaks within this time is tried once more.
_SOON_SECONDS = 5.0
_MOST_NOISE = 1 << 20


class Channel:
    """A command with a mux server at its far end, started when needed.

    Attributes:
        held: How many connections use it.
        direct: Whether TCP streams may bypass it; True until a direct connection has failed.
    """

    def __init__(self, argv: Sequence[str], label: str, lost: Lost | None) -> None:
        self.label = label
        self.held = 0
        self.direct = True
        self._argv = tuple(argv)
        self._lost = lost
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._sending = threading.Lock()
        self._pipe: Pipe | None = None
        self._facts: dict[str, Any] | None = None
        self._serving = False
        self._closing = False
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._failed: NodeUnreachable | None = None
        self._failures = 0
        self._next_try = 0.0
        self._unheld_since: float | None = None

    # For connections

    def facts(self, base: Connection, deadline: float | None) -> dict[str, Any]:
        """What the mux server reports about itself; starts it if it is not running.

        Raises:
            NodeUnreachable: It does not start.
            TimeoutError: It did not start before the deadline.
        """
        began, again = time.monotonic(), True
        with self._changed:
            self._begin(base)
            while self._facts is None:
                if not self._serving:
                    assert self._failed is not None
                    at_once = time.monotonic() - began < _SOON_SECONDS
                    if not again or not at_once or type(self._failed) is not NodeUnreachable:
                        raise self._again(self._failed)
                    # No request was sent yet, so trying again is safe.
                    again = False
                    self._changed.wait(max(0.0, self._next_try - time.monotonic()))
                    self._begin(base)
                    continue
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"{self.label} did not begin in time")
                self._changed.wait(left)
            return self._facts

    def stream(
        self, base: Connection, request: Mapping[str, Any], deadline: float | None
    ) -> Stream:
        """Starts a request. Raises the errors of `facts`."""
        with self._changed:
            self.facts(base, deadline)
            self._last += 1
            stream = self._streams[self._last] = Stream(self, self._last)
        self.send(mux_framing.OPEN, stream.number, json.dumps(dict(request)).encode())
        return stream

    def keep(self) -> None:
        """Notes whether the channel is in use; an unused channel ends after a while."""
        with self._lock:
            self._unheld_since = None if self.held > 0 else time.monotonic()

    def shut(self) -> None:
        """Ends the channel now."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    @property
    def rests(self) -> bool:
        """Whether the channel is unused and has ended."""
        with self._lock:
            return self.held <= 0 and not self._serving

    def abandon(self) -> None:
        """Called in a forked process: closes our descriptors."""
        if self._pipe is not None:
            self._pipe.abandon()

    def lost(self, why: str) -> NodeUnreachable:
        """The error for a broken connection."""
        return NodeUnreachable(f"{self.label}: {why}; it is connected to again on the next use")

    # For streams

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        """Sends a frame, waiting for other senders. Errors are reported to the stream by the reading thread."""
        pipe = self._pipe
        if pipe is None:
            return
        with self._sending, suppress(OSError):
            # If the pipe broke, the reading thread reports it to all streams.
            pipe.send(mux_framing.frame(kind, stream, payload))

    def forget(self, stream: int) -> None:
        """Drops a stream and, if it is not over, has the mux server end it."""
        with self._lock:
            known = self._streams.pop(stream, None)
        if known is not None and not known.over:
            self.send(mux_framing.CLOSE, stream)

    # The reading thread

    def _begin(self, base: Connection) -> None:
        if self._serving:
            return
        if self._failed is not None and time.monotonic() < self._next_try:
            raise self._again(self._failed)
        self._serving, self._closing = True, False
        name = f"flowlite-step-{self.label}"
        threading.Thread(target=self._serve, args=(base,), name=name, daemon=True).start()

    def _again(self, error: NodeUnreachable) -> NodeUnreachable:
        # Raised in many threads: each needs an exception with its own traceback.
        return type(error)(str(error))

    def _serve(self, base: Connection) -> None:
        failed: NodeUnreachable | None = None
        try:
            self._converse(base)
        except NodeUnreachable as error:
            failed = error
        except Exception as error:
            failed = self.lost(f"{type(error).__name__}: {error}")
        pipe, self._pipe = self._pipe, None
        try:
            code = pipe.close() if pipe is not None else None
        except Exception as error:
            code, failed = None, failed or self.lost(str(error))
        said = readable(pipe.said) if pipe is not None else ""
        self._end(failed or self._explain(code, said))

    def _explain(self, code: int | None, said: str) -> NodeUnreachable:
        known = self._lost(code, said) if self._lost is not None else None
        if known is not None:
            return known
        status = "" if code is None else f" (exit status {code})"
        return self.lost(f"the way there broke{status}" + (f"; it said: {said}" if said else ""))

    def _end(self, error: NodeUnreachable) -> None:
        with self._changed:
            if self._facts is None:
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures, 16))
                self._failures += 1
                self._next_try = time.monotonic() + pause
            self._failed, self._facts, self._serving = error, None, False
            streams, self._streams = self._streams, {}
            self._changed.notify_all()
        for stream in streams.values():
            stream.fail(self._again(error))

    def _converse(self, base: Connection) -> None:
        """Reads until the mux server ends or the channel is closed. Raises NodeUnreachable, OSError."""
        pipe = self._pipe = base.pipe(self._argv, OPEN_SECONDS)
        if not (rest := self._await_greeting(pipe)):
            return
        # A frame of a mux server holds one block, or a short document.
        parser = mux_framing.Parser(MOST_JSON)
        heard = pinged = time.monotonic()
        # The greeting may have arrived alone; that is not EOF.
        data: bytes | None = rest[1:] or None
        while not self._over():
            if data:
                heard = time.monotonic()
                for frame in parser.take(data):
                    self._take(*frame)
            elif data == b"":
                return
            now = time.monotonic()
            if now - heard > SILENT_SECONDS:
                raise self.lost(f"nothing was heard of it for {SILENT_SECONDS:.0f} s")
            if now - pinged >= PING_SECONDS and self._ping(pipe):
                pinged = now
            data = pipe.receive(max(0.1, PING_SECONDS - (now - pinged)))

    def _await_greeting(self, pipe: Pipe) -> bytes:
        """Returns a newline and what followed the mux server's first line; b"" at EOF."""
        text, until = b"", time.monotonic() + OPEN_SECONDS
        while mux_framing.GREETING not in text:
            if len(text) > _MOST_NOISE:
                raise too_long(f"{self.label}: what is said before its program begins", _MOST_NOISE)
            data = pipe.receive(0.5)
            if data == b"" or self._over():
                return b""
            if time.monotonic() > until:
                raise self.lost(f"its command did not begin within {OPEN_SECONDS:.0f} s")
            text += data or b""
        return b"\n" + text.partition(mux_framing.GREETING)[2]

    def _ping(self, pipe: Pipe) -> bool:
        """Sends a ping, unless the pipe is busy: a sender's request is then answered, too."""
        if not self._sending.acquire(blocking=False):
            return False
        try:
            if not pipe.ready():
                return False
            with suppress(OSError):
                # The reading thread detects errors.
                pipe.send(mux_framing.frame(mux_framing.PING, 0))
        finally:
            self._sending.release()
        return True

    def _take(self, kind: int, number: int, payload: bytes) -> None:
        if number == 0:
            if kind == mux_framing.DONE:
                with self._changed:
                    self._facts, self._failed, self._failures = parse_object(payload), None, 0
                    self._changed.notify_all()
            return
        with self._lock:
            stream = self._streams.get(number)
        if stream is None:
            return
        # An invalid frame fails all streams, this one included.
        stream.take(kind, payload)
        if kind == mux_framing.DONE:
            with self._lock:
                self._streams.pop(number, None)

    def _over(self) -> bool:
        with self._lock:
            idle = self._unheld_since
            return self._closing or (idle is not None and time.monotonic() - idle > IDLE_SECONDS)
