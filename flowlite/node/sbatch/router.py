"""The router of a batch task, in the leader's agent. It connects the script's `srun` processes with the workers.

    worker -> router     worker {node, local} · started, data, fed, exit {step, task, …} · over {} · stopping {}
    router -> worker     start {step, …} · signal, input, input-ends, taken {step, …} · over {}
    srun -> router       step {…} · signal, input, input-ends, taken {…}
    router -> srun       placed {step, …} or refused {text} · started, data, fed, exit {task, …}

The router decides which node a task runs on, numbers the steps and forwards messages. The contents of a step are
handled by `srun.py` and `worker.py`. All peers have proved the task's secret (`node/protocol/framing.py`), inside TLS
where the rendezvous is encrypted.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import field
from typing import Any

from ..config.agent_config import AgentConfig
from ..protocol.channel import Channel
from ..protocol.framing import STEP_ROLE, Frame, ServerSession, WireError, encode
from ..quick_dataclass import dataclass
from ..system.accepting import accept_in_loop
from .layout import LayoutError, Placement, StepRequest, place

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..protocol.tls import TlsSession

OPENING_SECONDS = 10.0
ASIDE_SECONDS = 0.3
"""The delay before a stop signal is forwarded. If the whole gang is stopping, each node gets the signal directly."""
_BACKLOG = 1024
_TO_TASKS = ("signal", "input", "input-ends", "taken")
_TO_SRUN = ("started", "data", "fed", "exit")

log = logging.getLogger("flowlite.batch")
Place = tuple[int, int]


@dataclass(eq=False, slots=True)
class _Step:
    """A running step. `workers` maps each task that has not ended to its worker."""

    number: int
    client: _LocalClient
    workers: dict[int, Place] = field(default_factory=dict)


class Router:
    """Serves one attempt.

    Args:
        new_tls: Returns a TLS session for each connection; None if the gang stays on one machine.
    """

    def __init__(
        self, config: AgentConfig, secret: bytes, new_tls: Callable[[], TlsSession] | None
    ) -> None:
        self.attempt = config.attempt
        self._config = config
        self._secret = secret
        self._new_tls = new_tls
        self._counts = [int(each) for each in config.call["batch"]["counts"]]
        self._listener: socket.socket | None = None
        self._guests: set[_LocalClient] = set()
        self._workers: dict[Place, _LocalClient] = {}
        self._waiting: dict[Place, list[dict[str, Any]]] = {}
        self._busy: Counter[Place] = Counter()
        self._steps: dict[int, _Step] = {}
        self._number = 0
        self._over = False
        self._stopping = False

    def start(self) -> int:
        """Starts to listen and returns the port."""
        bind = self._config.bind
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._listener = socket.create_server((bind, 0), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        asyncio.get_running_loop().add_reader(self._listener, self._accept)
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Closes all connections. No task runs without the leader's agent."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        for guest in list(self._guests):
            guest.close()

    def _accept(self) -> None:
        assert self._listener is not None
        loop = asyncio.get_running_loop()
        accepted = accept_in_loop(loop, self._listener, self._accept)
        if accepted is None:
            return
        tls_session = self._new_tls() if self._new_tls is not None else None
        guest = _LocalClient(
            self, ServerSession(self._secret, self._config.task, (STEP_ROLE,)), tls_session
        )
        self._guests.add(guest)
        guest.begin(accepted[0])
        loop.call_later(OPENING_SECONDS, guest.show_out)

    # Incoming messages

    def received(self, guest: _LocalClient, message: dict[str, Any], blob: bytes) -> None:
        """Handles one message of an authenticated peer."""
        kind = message["type"]
        if kind == "worker":
            self._worker(guest, (int(message["node"]), int(message["local"])))
        elif kind == "step" and guest.step is None:
            self._begin(guest, message)
        elif kind in _TO_TASKS and guest.step is not None:
            self._to_tasks(guest.step, message, blob)
        elif kind in _TO_SRUN and guest.place is not None:
            self._to_srun(message, blob)
        elif kind == "over" and guest.place == (0, 0):
            self._over = True
            for worker in self._workers.values():
                worker.tell({"type": "over"})
        elif kind == "stopping":
            self._stopping = True
        else:
            raise WireError(f"nobody says {kind!r} here")

    def lost(self, guest: _LocalClient) -> None:
        """Handles the end of a connection."""
        self._guests.discard(guest)
        if guest.step is not None:
            self._forget(guest.step)
        if guest.place is not None and self._workers.get(guest.place) is guest:
            del self._workers[guest.place]
            for step in list(self._steps.values()):
                for task in [
                    task for task, worker in step.workers.items() if worker == guest.place
                ]:
                    self._to_srun(
                        {"type": "exit", "step": step.number, "task": task, "signal": 9}, b""
                    )

    def _worker(self, guest: _LocalClient, where: Place) -> None:
        guest.place = where
        self._workers[where] = guest
        for message in self._waiting.pop(where, ()):
            guest.tell(message)
        if self._over:
            guest.tell({"type": "over"})

    # Steps

    def _begin(self, guest: _LocalClient, message: dict[str, Any]) -> None:
        wish = StepRequest(**message.pop("wish"))
        busy = [0] * len(self._counts)
        for (node, _), running in self._busy.items():
            busy[node] += running
        try:
            found = place(wish, self._counts, busy)
        except LayoutError as error:
            guest.tell({"type": "refused", "text": str(error)})
            return
        step = guest.step = _Step(self._number, guest)
        self._number += 1
        self._steps[step.number] = step
        where = {"step": step.number, "nodes": found.nodes, "counts": found.counts}
        guest.tell({**where, "type": "placed"})
        for worker, mine in self._workers_for(step, found).items():
            self._tell_worker(worker, {**message, **where, "type": "start", "mine": mine})

    def _workers_for(self, step: _Step, found: Placement) -> dict[Place, list[int]]:
        """Assigns each task, in order, to the least busy worker of its node."""
        chosen: dict[Place, list[int]] = {}
        places = range(self._config.processes_per_node)
        for task in sorted(found.tasks(), key=lambda each: (each.node, each.local)):
            workers = [(task.node, local) for local in places]
            worker = min(workers, key=lambda each: (self._busy[each], each))
            self._busy[worker] += 1
            step.workers[task.id] = worker
            chosen.setdefault(worker, []).append(task.id)
        return chosen

    def _tell_worker(self, worker: Place, message: dict[str, Any]) -> None:
        if worker in self._workers:
            self._workers[worker].tell(message)
        else:
            self._waiting.setdefault(worker, []).append(message)

    def _to_tasks(self, step: _Step, message: dict[str, Any], blob: bytes) -> None:
        if message["type"] == "signal" and message["number"] in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().call_later(ASIDE_SECONDS, self._pass_on, step, message)
        else:
            self._pass_on(step, message, blob)

    def _pass_on(self, step: _Step, message: dict[str, Any], blob: bytes = b"") -> None:
        if self._stopping and message["type"] == "signal" and message["number"] != signal.SIGKILL:
            return
        wanted = message.get("task")
        workers = {
            worker for task, worker in step.workers.items() if wanted is None or task == wanted
        }
        for worker in workers:
            if worker in self._workers:
                self._workers[worker].tell({**message, "step": step.number}, blob)

    def _to_srun(self, message: dict[str, Any], blob: bytes) -> None:
        step = self._steps.get(int(message["step"]))
        if step is None:
            return
        if message["type"] == "exit":
            worker = step.workers.pop(int(message["task"]), None)
            if worker is not None:
                self._busy[worker] -= 1
        step.client.tell(message, blob)

    def _forget(self, step: _Step) -> None:
        """Removes a step whose srun is gone, and kills its remaining tasks."""
        self._pass_on(step, {"type": "signal", "number": int(signal.SIGKILL)})
        for worker in step.workers.values():
            self._busy[worker] -= 1
        self._steps.pop(step.number, None)


class _LocalClient(Channel):
    """The connection of a worker or an srun."""

    def __init__(
        self, router: Router, session: ServerSession, tls_session: TlsSession | None
    ) -> None:
        super().__init__(session, tls_session)
        self._router = router
        self.place: Place | None = None
        self.step: _Step | None = None

    def tell(self, message: dict[str, Any], blob: bytes = b"") -> None:
        self.send(encode(message), blob)

    def show_out(self) -> None:
        """Closes the connection if the peer has not authenticated by now."""
        if not self.session.authenticated and not self.closing:
            self.abort()

    def on_opened(self) -> None:
        hello = self.session.hello if isinstance(self.session, ServerSession) else None
        if hello is None or hello.attempt != self._router.attempt:
            self.abort()

    def on_frame(self, frame: Frame) -> None:
        try:
            self._router.received(self, frame.message, frame.blob)
        except (WireError, KeyError, TypeError, ValueError) as error:
            log.warning("a connection of the batch script was ended: %s", error)
            self.abort()

    def on_nonsense(self, error: WireError) -> None:
        log.warning("a connection was turned away: %s", error)

    def on_closed(self, error: Exception | None) -> None:
        self._router.lost(self)
