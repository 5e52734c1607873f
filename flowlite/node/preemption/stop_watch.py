"""Renews the machine's lease, reports preemption notices and deadlines, and lets workers stop in time."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..protocol.messages import DEADLINE
from ..system import processes
from .shared_page import StopPage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rendezvous.member_client import MemberClient

log = logging.getLogger("flowlite.preemption")

LOOK = 0.02
"""Seconds between two looks at the page while workers are held."""
SETTLE = 0.05
"""Seconds from the hold to the first look: a worker that read the page just before has taken its slot by then."""
MOST_BEFORE_DEADLINE, PART_BEFORE_DEADLINE = 60.0, 0.1
"""Workers are told this many seconds before the longest run is over, or this share of it, whichever is shorter."""
LOOK_FOR_CALLERS, LOOK_LATER = 0.5, 10.0
"""Seconds between two looks for processes that could be asked to stop, in a gang that grows: at first, and later."""
_EXPLAINED_SECONDS = 6.0
"""Time within which the step daemon of a Slurm job explains a signal by a notice (node/slurm_step/notices.py)."""


class StopWatch:
    """One agent's part in stopping the gang before a preemption or a deadline. Implements `StopListener`."""

    def __init__(
        self,
        config: AgentConfig,
        paths: AttemptPaths,
        find_listeners: Callable[[], list[int]],
        find_listening_ranks: Callable[[], list[int]],
    ) -> None:
        """
        Args:
            find_listeners: Returns the workers and their descendants that have a handler for SIGUSR2.
            find_listening_ranks: Returns the workers that have set one themselves. Only these are asked to stop so that
                the gang may grow: many programs have one that does not end them, such as Java's virtual machine.
        """
        self._config = config
        self._find_listeners = find_listeners
        self._find_listening_ranks = find_listening_ranks
        self._listeners: list[int] = []
        self._growing = False
        # Whether SIGUSR2 was sent so that the gang may grow, and before a preemption or deadline.
        self._asked = self._warned = False
        self._path = paths.stop
        self._page: StopPage | None = None
        self._link: MemberClient | None = None
        self._running = asyncio.Event()
        self._working: list[asyncio.Task[None]] = []
        self._holding: asyncio.Task[None] | None = None
        self._hold = 0
        self._early: list[tuple[str, str, float, float]] = []
        self._noticed = asyncio.Event()
        self._signalled: float | None = None

    def begin(self) -> None:
        """Start to renew the lease and to poll for preemption, when the agent starts."""
        if self._config.lease is not None:
            from .lease_file import keep_renewing

            lease = self._config.lease
            self._do(keep_renewing(Path(str(lease["file"])), float(lease["seconds"])))
        if self._config.preemption is not None:
            self._do(self._await_notice(self._config.preemption))

    def join(self, link: MemberClient) -> None:
        """Connect to the rendezvous, and report notices that came before."""
        self._link = link
        now = asyncio.get_running_loop().time()
        for kind, reason, seconds, since in self._early:
            link.vanish(kind, reason, max(0.0, seconds - (now - since)))

    def workers_start(self) -> None:
        """Called just before workers start: makes the shared page, and schedules the notice of the deadline."""
        self._running.set()
        try:
            self._page = StopPage(self._path, self._config.processes_per_node)
        except OSError as error:
            log.warning("workers cannot be told in time when to stop: %s", error)
        if self._config.tells_stoppable and self._page is not None:
            self._do(self._look_for_callers(self._page))
        longest = self._config.max_run_seconds
        if longest is None or not self._config.is_leader:
            return
        before = min(MOST_BEFORE_DEADLINE, PART_BEFORE_DEADLINE * longest)
        reason = f"the longest run of {longest:g} s is nearly over"
        loop = asyncio.get_running_loop()
        loop.call_later(longest - before, self._say, DEADLINE, reason, before)

    def hold(self, seconds: float, hold: int = 0, *, growing: bool = False) -> None:
        """Let workers wait in their next call of `should_stop()`. Those with a handler for SIGUSR2 get it, once.

        Those that got it so that the gang may grow get it again before a preemption or a deadline.
        """
        self._growing = growing
        if growing and not self._asked:
            self._listeners = self._find_listening_ranks()
        elif not (growing or self._warned):
            self._listeners = self._find_listeners()
        if self._page is None and self._link is not None:
            self._link.calls(0, [], len(self._listeners), hold)
            self._warn()
        if self._holding is not None and hold != self._hold:
            # The order that ended the hold before was lost with a connection.
            self.go_on(0)
        self._hold = hold
        if self._page is not None and self._holding is None:
            self._page.hold(seconds)
            self._holding = asyncio.create_task(self._tell_calls(self._page))

    def go_on(self, call: int) -> None:
        """Let waiting workers continue. `should_stop()` is True from this call on; 0: it stays False."""
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None
        if self._page is not None and call:
            self._page.decide(call)
        elif self._page is not None:
            self._page.let_go()

    def awaits_reason(self, end: Callable[[], None]) -> bool:
        """Whether a notice is awaited that says what a signal to the agent means. If none comes soon, calls `end`.

        Slurm sends the signal to all processes of a job when it decides on preemption, and again when the grace period
        is over. Each time, `srun` may pass on another one to each process, milliseconds later.
        """
        if not self._in_slurm:
            return False
        now = asyncio.get_running_loop().time()
        if self._signalled is None:
            self._signalled = now
            self._do(self._unless_explained(end))
            return True
        return now - self._signalled < _EXPLAINED_SECONDS

    def asked_to_end(self) -> None:
        """Called when the agent ends on a signal, or the gang since another one has. Listeners are told, once.

        Only in a Slurm job: there the signal may be the only notice.
        """
        if self._in_slurm:
            if not self._warned:
                self._listeners = self._find_listeners()
            self._growing = False
            self._warn()

    # Internals

    @property
    def _in_slurm(self) -> bool:
        return (self._config.preemption or {}).get("kind") == "slurm"

    async def _unless_explained(self, end: Callable[[], None]) -> None:
        """If a notice comes, the gang stops as after any other notice."""
        try:
            await asyncio.wait_for(self._noticed.wait(), _EXPLAINED_SECONDS)
        except TimeoutError:
            end()

    def _warn(self) -> None:
        """Send SIGUSR2 to the listeners, once for each of the two purposes.

        During a hold, the listeners are reported to the leader first, so that it does not take their end for the end
        of the task.
        """
        if self._asked if self._growing else self._warned:
            return
        if self._growing:
            # Who begins to listen later is asked in a later round.
            self._asked = bool(self._listeners)
        else:
            self._warned = True
        for pid in self._listeners:
            processes.send(pid, signal.SIGUSR2)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._working.append(asyncio.create_task(work))

    async def _await_notice(self, how: Mapping[str, Any]) -> None:
        from .notices import watch

        notice = await watch(how, self._say_aloud, self._running)
        if notice is None:
            return
        self._noticed.set()
        what = "it nearly is time" if notice.kind == DEADLINE else "this machine will be taken away"
        log.info("%s: %s, %.0f s left", what, notice.reason, notice.seconds)
        self._say(notice.kind, notice.reason, notice.seconds)

    def _say(self, kind: str, reason: str, seconds: float) -> None:
        if self._link is None:
            now = asyncio.get_running_loop().time()
            self._early.append((kind, reason, seconds, now))
        else:
            self._link.vanish(kind, reason, seconds)

    def _say_aloud(self, text: str) -> None:
        log.info("%s", text)
        if self._link is not None:
            self._link.notice(text)

    async def _tell_calls(self, page: StopPage) -> None:
        told: tuple[int, list[int]] | None = None
        await asyncio.sleep(SETTLE)
        while True:
            callers = page.callers()
            found = (len(callers), sorted(each.call for each in callers if each.waits))
            if found != told and self._link is not None:
                told = found
                self._link.calls(*found, len(self._listeners), self._hold)
                self._warn()
            await asyncio.sleep(LOOK)

    async def _look_for_callers(self, page: StopPage) -> None:
        """Tells the leader once that a process calls `should_stop()` or a worker listens for SIGUSR2."""
        pause = LOOK_FOR_CALLERS
        while not (page.callers() or self._find_listening_ranks()):
            await asyncio.sleep(pause)
            pause = min(LOOK_LATER, 2 * pause)
        if self._link is not None:
            self._link.stoppable()
