"""Client of the courier, the program that handles many requests on a host over one channel (`node/helper/courier.py`).

It saves the start of a shell or a Python on the host for each request. There is at most one courier per link, and it
handles one request at a time. A caller that finds it busy, ended or unsuitable uses a command of its own instead.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from flowlite.connect.base import NotStarted
from flowlite.connect.bounded import Tail
from flowlite.connect.courier_answer import Answer, CourierAnswer
from flowlite.connect.ssh.commands import Run
from flowlite.connect.ssh.link import Link
from flowlite.connect.ssh.quoting import command, readable
from flowlite.errors import NodeUnreachable
from flowlite.node.helper.courier import ROOM

_BUSY_SECONDS = 5.0
# A heartbeat is no reason to start a command of one's own instead.
_BEAT_TAKES = 0.1
# A courier without a heartbeat for this long assumes that the client is gone, and ends its session with sshd.
_SILENT_SECONDS = 45.0
_BEAT_SECONDS = 10.0


class Courier:
    """The courier of one link, while its channel is open."""

    def __init__(self, link: Link, argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        self._link = link
        self._turn = threading.Lock()
        self._held = ExitStack()
        self._run: Run | None = None
        self.gone = False

    def begin(self, deadline: float) -> None:
        """Starts the courier; its first answer shows that it runs. Raises NodeUnreachable, TimeoutError."""
        channel = self._held.enter_context(self._link.session(deadline))
        if not self._link.may_reside:
            # This host has no sessions to spare.
            raise NotStarted(0, "")
        self._link.resident, self.gone = self, False
        self._run = Run(self._link, channel)
        self._run.begin(b"exec " + command((*self.argv, ROOM)), False)
        self._beat(self._run)
        _keep_alive(self)

    def beat(self) -> bool:
        """Sends a heartbeat. False if the courier is gone."""
        # A request in progress serves as a heartbeat, too.
        if not self.gone and self._turn.acquire(blocking=False):
            try:
                if self._run is not None and self._run.ready():
                    self._beat(self._run)
            finally:
                self._turn.release()
        return not self.gone

    def _beat(self, run: Run) -> None:
        run.send((json.dumps({"do": "beat", "within": _SILENT_SECONDS}).encode() + b"\n",))

    def ask(
        self, request: Mapping[str, Any], content: bytes, timeout: float, *, wait: bool
    ) -> Answer | None:
        """Sends a request and returns the answer; None if the courier is busy or gone.

        Raises:
            TimeoutError: The courier did not answer in time and was ended.
        """
        if not self._turn.acquire(timeout=_BUSY_SECONDS if wait else _BEAT_TAKES):
            return None
        try:
            return None if self.gone else self._ask(request, content, time.monotonic() + timeout)
        except TimeoutError:
            run = self._run
            self.end()
            if run is not None:
                run.kill()
            raise
        except (NodeUnreachable, NotStarted):
            self.end()
            raise
        finally:
            self._turn.release()

    def _ask(self, request: Mapping[str, Any], content: bytes, deadline: float) -> Answer:
        if self._run is None:
            self.begin(deadline)
        assert self._run is not None
        head = json.dumps({**request, "size": len(content)}).encode() + b"\n"
        self._run.send((head + content,))
        label = self._link.target.label
        answer, said = (
            CourierAnswer(f"host {label}"),
            Tail(f"host {label}: what our program there complains of"),
        )
        for stream, block in self._run.pieces(deadline):
            if stream == "err":
                said.add(block)
            elif (found := answer.take(block)) is not None:
                return found
        raise NotStarted(self._run.code(), readable(bytes(said)[-2000:]))

    def end(self) -> None:
        """Closes its channel, which ends the program on the host."""
        self.gone = True
        self._held.close()


def ask(
    link: Link,
    request: Mapping[str, Any],
    content: bytes = b"",
    *,
    timeout: float,
    start: Sequence[str] | None = None,
) -> Answer | None:
    """Sends a request to the courier of a link; returns None if there is none, or it cannot handle the request.

    Args:
        start: The command of a courier, to be started if there is none, and to be waited for if it is busy.

    Raises:
        NotStarted: The courier could not be started.
        NodeUnreachable: The host does not answer.
        TimeoutError: The courier does not answer and was ended.
    """
    courier = link.resident if isinstance(link.resident, Courier) else None
    if courier is not None and (courier.gone or (start and courier.argv != tuple(start))):
        courier.end()
        courier = None
    if courier is None:
        # A courier that ended with its transport is started again, since it also ends the sessions that the next outage
        # leaves.
        argv = start or link.resident_argv
        if argv is None or not link.may_reside:
            return None
        courier, link.resident_argv = Courier(link, argv), tuple(argv)
        link.resident = courier
    try:
        answer = courier.ask(request, content, timeout, wait=start is not None)
    except NotStarted:
        link.resident_argv = None
        if start is not None:
            raise
        return None
    except NodeUnreachable:
        if courier is link.resident:
            link.resident = None
        if start is not None:
            raise
        # Perhaps only its channel broke; a command of the caller's own will show.
        return None
    return None if answer is None or answer[0].get("unfit") else answer


# Heartbeats for all couriers of this process

_alive: set[Courier] = set()
_lock = threading.Lock()
_beating: threading.Thread | None = None


def _keep_alive(courier: Courier) -> None:
    """Sends heartbeats to a courier until it is gone."""
    global _beating
    with _lock:
        _alive.add(courier)
        if _beating is None or not _beating.is_alive():
            _beating = threading.Thread(target=_beat_all, name="flowlite-ssh-beat", daemon=True)
            _beating.start()


def _beat_all() -> None:
    while True:
        time.sleep(_BEAT_SECONDS)
        with _lock:
            alive = list(_alive)
        gone = [courier for courier in alive if not courier.beat()]
        with _lock:
            _alive.difference_update(gone)


def _after_fork() -> None:
    """Runs in a forked process, which has no heartbeat thread; the couriers stay the parent's."""
    global _lock, _beating
    _lock, _beating = threading.Lock(), None
    _alive.clear()


os.register_at_fork(after_in_child=_after_fork)
