"""What the agent watches beside its workers: the machine's lease, and notice of its end, which workers hear in time."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..rendezvous.stop_vote import DEADLINE
from ..system import processes
from .shared_page import StopPage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..rendezvous.member_client import MemberClient
    from .notices import Notice

log = logging.getLogger("flowlite.in_worker.should_stop")

LOOK = 0.02
"""How often the page is looked at while workers are to come to wait."""
SETTLE = 0.05
"""A worker that has read the page just before it said "hold" has said by then that it calls."""
MOST_BEFORE_DEADLINE, PART_BEFORE_DEADLINE = 60.0, 0.1
"""Workers that ask are told so long before the longest run is over, or so large a part of it."""
_EXPLAINED_SECONDS = 6.0
"""Within which the step daemon of a Slurm job has said what a signal is about (slurm_step/notices.py)."""


class StopWatch:
    """One agent's part in what is up with its machine."""

    def __init__(
        self, config: AgentConfig, paths: AttemptPaths, find_listeners: Callable[[], list[int]]
    ) -> None:
        """`find_listeners` gives the processes of workers that wait for SIGUSR2 rather than ask."""
        self._config = config
        self._find_listeners = find_listeners
        self._listeners: list[int] = []
        self._warned = False
        self._path = paths.stop
        self._page: StopPage | None = None
        self._link: MemberClient | None = None
        self._running = asyncio.Event()
        self._working: list[asyncio.Task[None]] = []
        self._holding: asyncio.Task[None] | None = None
        self._early: list[tuple[str, str, float, float]] = []
        self._noticed = asyncio.Event()
        self._explaining = (config.preemption or {}).get("kind") == "slurm"

    def begin(self) -> None:
        """From the agent's start to its end: the lease, and the watch for preemption."""
        if self._config.lease is not None:
            from .lease_file import keep_renewing

            lease = self._config.lease
            self._do(keep_renewing(Path(str(lease["file"])), float(lease["seconds"])))
        if self._config.preemption is not None:
            from .notices import watch

            self._do(
                watch(self._config.preemption, self._on_notice, self._say_aloud, self._running)
            )

    def join(self, link: MemberClient) -> None:
        """The rendezvous can be told now."""
        self._link = link
        now = asyncio.get_running_loop().time()
        for kind, reason, seconds, since in self._early:
            link.vanish(kind, reason, max(0.0, seconds - (now - since)))

    def workers_start(self) -> None:
        """Just before they do: makes the page that they share, and the longest run begins."""
        self._running.set()
        try:
            self._page = StopPage(self._path, self._config.processes_per_node)
        except OSError as error:
            log.warning("workers cannot be told in time when to stop: %s", error)
        longest = self._config.max_run_seconds
        if longest is None or not self._config.is_leader:
            return
        before = min(MOST_BEFORE_DEADLINE, PART_BEFORE_DEADLINE * longest)
        reason = f"the longest run of {longest:g} s is nearly over"
        loop = asyncio.get_running_loop()
        loop.call_later(longest - before, self._say, DEADLINE, reason, before)

    def hold(self, seconds: float) -> None:
        """Workers that call `should_stop()` are to wait. Those that have a handler for SIGUSR2 get it, once."""
        if not self._warned:
            self._listeners = self._find_listeners()
        if self._page is None and self._link is not None:
            self._link.calls(0, [], len(self._listeners))
            self._warn()
        if self._page is not None and self._holding is None:
            self._page.hold(seconds)
            self._holding = asyncio.create_task(self._tell_calls(self._page))

    def go_on(self, call: int) -> None:
        """They go on; from this call on it is True, or never, where it is 0."""
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None
        if self._page is not None and call:
            self._page.decide(call)
        elif self._page is not None:
            self._page.let_go()

    def may_explain(self) -> bool:
        """Whether a signal to end may come with notice that there is time yet. Once: the second one is meant.

        Slurm sends it to all of a job's processes when it decides on preemption, and again when the grace is over.
        """
        explaining, self._explaining = self._explaining, False
        return explaining

    async def unless_explained(self, end: Callable[[], None]) -> None:
        """Ends if no notice comes soon; if one does, the gang gets ready for the end as it always does."""
        try:
            await asyncio.wait_for(self._noticed.wait(), _EXPLAINED_SECONDS)
        except TimeoutError:
            end()

    def asked_to_end(self) -> None:
        """The agent got SIGTERM. Where Slurm sends it to all that runs, it is all the notice there is."""
        if (self._config.preemption or {}).get("kind") == "slurm":
            self._listeners = self._listeners or self._find_listeners()
            self._warn()

    # Inside

    def _warn(self) -> None:
        """Once. The leader has heard of those who get it by now: it must not take their end for the end of the task."""
        if not self._warned:
            self._warned = True
            for pid in self._listeners:
                processes.send(pid, signal.SIGUSR2)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._working.append(asyncio.create_task(work))

    def _on_notice(self, notice: Notice) -> None:
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
                self._link.calls(*found, len(self._listeners))
                self._warn()
            await asyncio.sleep(LOOK)
