"""Brings up and watches machines of a task that have no rank: spares, and those with which a gang is to grow."""

from __future__ import annotations

import asyncio
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flowlite.errors import FlowError, LeaseLost, ProviderError, StoreError
from flowlite.state import clock
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer
from flowlite.supervise.attempt.reachability import Reachability
from flowlite.supervise.attempt.start_agents import SPARE, BringUp, NotUp
from flowlite.supervise.provision import LaunchRefused
from flowlite.supervise.record.lifecycle import TaskEvent
from flowlite.supervise.record.log import say
from flowlite.supervise.waiting import wait_for_event

if TYPE_CHECKING:
    from flowlite.provider import Instance
    from flowlite.state.store import InstanceRecord
    from flowlite.supervise.process.led_task import LedTask

# How long a machine may be silent, while something else of the provider answers, before it is given up.
_SILENT_SECONDS = 20.0
_EVERY = 2.0
# Machines that fail one after the other before no more are launched: what fails there would fail everywhere.
_MOST_FAILURES = 3
# Entries of the history in one attempt.
_MOST_TOLD = 30
# Seconds between two tries to end machines that were given up: those that do not answer cost time.
_END_EVERY = 10.0


class MachinesWithoutRank(ABC):
    """Keeps machines without a rank beside an attempt, in the background, from its start to its end. They outlast it.

    Attributes:
        ready: Ids of those that are ready.
        failures: How many launches failed one after the other.
    """

    def __init__(self, task: LedTask, what: str, kind: str) -> None:
        """
        Args:
            what: What such a machine is called, before its id.
            kind: Kind of the entries of the task's history that tell of them.
        """
        self._task = task
        self._asked = task.asked
        self._journal = task.journal
        self._provisioner = task.provisioner
        self._what = what
        self._kind = kind
        self._closing = asyncio.Event()
        self._launching = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None
        self._told: set[str] = set()
        self._is_broken = False
        self._up: dict[str, Node] = {}
        self._answered: dict[str, float] = {}
        self.ready: set[str] = set()
        self.failures = 0
        self._launches: dict[str, str] = {}
        self._failed_launches: set[str] = set()
        # Whether a machine that was given up is still there, and when it is asked to end again.
        self._leaving = False
        self._end_at = 0.0

    @abstractmethod
    async def _go_on(self) -> None:
        """Does what is to be done now. Called every two seconds, unless it fails."""

    @abstractmethod
    def _on_failure(self, why: str) -> float:
        """Tells users why `_go_on` has failed. Returns the seconds until it is called again."""

    @property
    def _fails_everywhere(self) -> bool:
        return self.failures >= _MOST_FAILURES

    def _begin_to_keep(self) -> None:
        self._keeping = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stops, and closes all connections. The machines stay as they are. May be called again."""
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
        while not self._closing.is_set():
            pause = _EVERY
            try:
                await self._go_on()
            except LeaseLost:
                return
            except (FlowError, LaunchRefused, StoreError, OSError) as error:
                pause = self._on_failure(str(error))
            except Exception as error:
                # Those that have come are looked after nevertheless: they are charged, and end without that.
                if not self._is_broken:
                    say(traceback.format_exc())
                self._is_broken = True
                pause = self._on_failure(f"{type(error).__name__}: {error} (a defect of flowlite)")
            await wait_for_event(self._closing, pause)

    def _record(self, rows: list[InstanceRecord], settled: Mapping[str, str]) -> None:
        """Records the machines of one launch. The reason may be another one than before the call."""
        self._journal.step(
            TaskEvent.PROGRESS, why=self._journal.record.reason, instances=rows, settled=settled
        )

    def _tell(self, text: str) -> None:
        say(text)
        if text not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(text)
            self._journal.note(self._kind, text)

    def _came_together(self, names: Sequence[str]) -> None:
        """Notes the machines of one launch. If they fail, that counts once: one may take the others with it."""
        self._launches |= dict.fromkeys(names, names[0]) if names else {}

    async def _bring_up_or_probe(self, instance: Instance) -> str:
        """Brings a machine up, or probes it. Gives it up if it is lost.

        Returns:
            The machine's name the first time that it is ready, else "".
        """
        node = self._up.get(instance.id)
        try:
            if node is None:
                node = self._up[instance.id] = self._node(instance)
                await self._bring_up(node)
            finding, ready = await self._task.threads.run(_look, node)
        except NotUp as error:
            self._count_failure(instance)
            await self._replace(node or self._node(instance), str(error))
            return ""
        now = time.monotonic()
        if finding.life is ProbeAnswer.ALIVE:
            self._answered[instance.id] = now
            if ready and instance.id not in self.ready:
                self.ready.add(instance.id)
                self.failures = 0
                return node.name
            return ""
        silent = now - self._answered.setdefault(instance.id, now)
        if finding.life is ProbeAnswer.UNREACHABLE:
            if silent < _SILENT_SECONDS:
                return ""
            if not await self._task.threads.run(self._task.provider.answers_beside, [instance]):
                return ""
        elif finding.life is ProbeAnswer.DEAD:
            self._count_failure(instance)
        elif finding.life is ProbeAnswer.ABSENT and silent < _SILENT_SECONDS:
            return ""
        await self._replace(node, finding.why, answers=finding.life is not ProbeAnswer.UNREACHABLE)
        return ""

    async def _end_given_up(self) -> None:
        """Ends what was given up, and records the end of what has gone, which is charged until then."""
        if clock.monotonic() >= self._end_at:
            self._leaving = await self._provisioner.end_given_back(self._journal.record.roster)
            self._end_at = clock.monotonic() + (_END_EVERY if self._leaving else 0.0)

    def _forget(self, instance: Instance) -> None:
        """Closes the connection to a machine that is not looked after any more."""
        self.ready.discard(instance.id)
        if (node := self._up.pop(instance.id, None)) is not None:
            node.close()

    def _count_failure(self, instance: Instance) -> None:
        launch = self._launches.get(instance.id, instance.id)
        self.failures += launch not in self._failed_launches
        self._failed_launches.add(launch)

    async def _bring_up(self, node: Node) -> None:
        """Sends what the node needs and starts its agent. Raises NotUp."""
        task, record = self._task, self._task.journal.record
        bring_up = BringUp(
            task.asked,
            task.paths,
            record.name,
            SPARE,
            [node],
            None,
            task.agent,
            task.threads,
            Reachability([node], task.threads, lambda: "", lambda since: None),
        )
        # `close` cancels it; to have it give up would look like a failure.
        await bring_up.start(asyncio.Event())

    async def _replace(self, node: Node, why: str, *, answers: bool = True) -> None:
        """Has a machine replaced."""
        self._tell(f"{node.name} is given up: {why}")
        self._forget(node.instance)
        await self._task.provisioner.end_without_rank(node.instance, answers=answers)

    def _node(self, instance: Instance) -> Node:
        provider, plan = self._task.provider, self._task.asked.plan
        settings = provider.node_settings(plan, instance)
        node = Node(provider, instance, settings, plan.num_instances, SPARE)
        node.name = f"{self._what} {instance.id}"
        return node


async def each_of(doing: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Awaits all of these, and raises the first error only then.

    Otherwise one that goes on would be begun a second time beside it, and a machine that is being equipped given up.
    """
    done = await asyncio.gather(*doing, return_exceptions=True)
    wrong = [each for each in done if isinstance(each, BaseException)]
    for error in sorted(wrong, key=lambda each: not isinstance(each, LeaseLost)):
        raise error


def _look(node: Node) -> tuple[Finding, bool]:
    """Probes a machine, and tells it that it is wanted. Returns also whether it is ready."""
    finding, ready = node.probe(), False
    if finding.life is ProbeAnswer.ALIVE:
        with suppress(ProviderError, OSError):
            ready = node.want()
    return finding, ready
