"""Keeps the spare machines of a task ready while an attempt runs: brought up, watched, and made good if lost."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.errors import FlowError, LeaseLost, ProviderError, StoreError
from flowlite.provider import Instance, Provider
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer
from flowlite.supervise.attempt.reachability import Reachability
from flowlite.supervise.attempt.start_agents import SPARE, BringUp, NotUp
from flowlite.supervise.record.lifecycle import TaskEvent
from flowlite.supervise.record.log import say

if TYPE_CHECKING:
    from flowlite.supervise.process.journal import Journal
    from flowlite.supervise.provision import Provisioner
    from flowlite.supervise.record.paths import TaskPaths
    from flowlite.supervise.record.task_view import TaskView
    from flowlite.supervise.threads import Threads

_EVERY = 2.0
_LONGEST_PAUSE = 60.0
# How long a spare may be silent, while something else of the provider answers, before it is given up.
_SILENT_SECONDS = 20.0
# Spares that fail one after the other before no more are launched: what fails there would fail everywhere.
_MOST_FAILURES = 3


class Spares:
    """The spare machines of one task, from the start of an attempt to its end. They outlast it."""

    def __init__(
        self,
        provider: Provider,
        asked: TaskView,
        paths: TaskPaths,
        journal: Journal,
        provisioner: Provisioner,
        threads: Threads,
        agent: tuple[Path, str],
    ) -> None:
        self._provider = provider
        self._asked = asked
        self._paths = paths
        self._journal = journal
        self._provisioner = provisioner
        self._threads = threads
        self._agent = agent
        self._closing = asyncio.Event()
        self._launching = asyncio.Lock()
        self._up: dict[str, Node] = {}
        self._answered: dict[str, float] = {}
        self._ready: set[str] = set()
        self._failures = 0
        self._told: set[str] = set()
        self._keeping: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begins to keep them, in the background."""
        if self._asked.plan.spares:
            self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stops watching. The machines stay as they are. May be called again."""
        self._closing.set()
        if self._keeping is None:
            return
        # The outcome of a call that launches must be known before anything is ended.
        async with self._launching:
            self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        for node in self._up.values():
            node.close()
        self._up.clear()

    async def _keep(self) -> None:
        pause = _EVERY
        while not self._closing.is_set():
            try:
                await self._make_good()
                spares = self._provisioner.spares()
                await asyncio.gather(*(self._look_after(each) for each in spares.values()))
                pause = _EVERY
            except LeaseLost:
                return
            except (FlowError, StoreError, OSError) as error:
                self._tell(f"a spare is missing: {error}")
                pause = min(_LONGEST_PAUSE, pause * 2)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._closing.wait()

    async def _make_good(self) -> None:
        """Launches as many spares as are missing."""
        missing = self._asked.plan.spares - len(self._provisioner.spares())
        if missing <= 0 or self._failures >= _MOST_FAILURES:
            return
        async with self._launching:
            if self._closing.is_set():
                return
            record = self._journal.record
            rows, settled = await self._provisioner.launch_spares(record, missing, self._agent[0])
            if rows:
                self._journal.step(
                    TaskEvent.PROGRESS, why=record.reason, instances=rows, settled=settled
                )

    async def _look_after(self, instance: Instance) -> None:
        """Brings a spare up, or probes it. Gives it up if it is lost."""
        node = self._up.get(instance.id)
        try:
            if node is None:
                node = self._up[instance.id] = self._node(instance)
                await self._bring_up(node)
            finding, ready = await self._threads.run(_look, node)
        except NotUp as error:
            self._failures += 1
            await self._give_up(node or self._node(instance), str(error))
            return
        now = time.monotonic()
        if finding.life is ProbeAnswer.ALIVE:
            self._answered[instance.id] = now
            if ready and instance.id not in self._ready:
                self._ready.add(instance.id)
                self._failures = 0
                self._tell(f"{node.name} is ready to take the rank of a lost node")
            return
        silent = now - self._answered.setdefault(instance.id, now)
        if finding.life is ProbeAnswer.UNREACHABLE:
            if silent < _SILENT_SECONDS:
                return
            if not await self._threads.run(self._provider.answers_beside, [instance]):
                return
        elif finding.life is ProbeAnswer.DEAD:
            self._failures += 1
        elif finding.life is ProbeAnswer.ABSENT and silent < _SILENT_SECONDS:
            return
        await self._give_up(node, finding.why, answers=finding.life is not ProbeAnswer.UNREACHABLE)

    async def _bring_up(self, node: Node) -> None:
        """Sends what the node needs and starts its agent. Raises NotUp."""
        bring_up = BringUp(
            self._asked,
            self._paths,
            self._journal.record.id,
            self._journal.record.name,
            SPARE,
            [node],
            None,
            self._agent,
            self._threads,
            Reachability([node], self._threads, lambda: "", lambda since: None),
        )
        await bring_up.start(self._closing)

    async def _give_up(self, node: Node, why: str, *, answers: bool = True) -> None:
        """Has a spare replaced."""
        self._tell(f"{node.name} is given up: {why}")
        self._up.pop(node.instance.id, None)
        node.close()
        await self._provisioner.end_spare(node.instance, answers=answers)

    def _tell(self, text: str) -> None:
        say(text)
        if text not in self._told:
            self._told.add(text)
            self._journal.note("spare", text)

    def _node(self, instance: Instance) -> Node:
        settings = self._provider.node_settings(self._asked.plan, instance)
        node = Node(self._provider, instance, settings, self._asked.plan.num_instances, SPARE)
        node.name = f"the spare {instance.id}"
        return node


def _look(node: Node) -> tuple[Finding, bool]:
    """Probes a spare, and tells it that it is wanted. Returns also whether it is ready."""
    finding, ready = node.probe(), False
    if finding.life is ProbeAnswer.ALIVE:
        with suppress(ProviderError, OSError):
            ready = node.want()
    return finding, ready
