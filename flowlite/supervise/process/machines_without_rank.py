"""Brings up and watches machines of a task that have no rank: spares, and those with which a gang is to grow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flowlite.errors import LeaseLost, ProviderError
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer
from flowlite.supervise.attempt.reachability import Reachability
from flowlite.supervise.attempt.start_agents import SPARE, BringUp, NotUp

if TYPE_CHECKING:
    from flowlite.provider import Instance
    from flowlite.supervise.process.led_task import LedTask

# How long a machine may be silent, while something else of the provider answers, before it is given up.
_SILENT_SECONDS = 20.0


class MachinesWithoutRank:
    """Machines without a rank, while an attempt runs. They outlast it.

    Attributes:
        ready: Ids of those that are ready.
        failures: How many launches failed one after the other.
    """

    def __init__(
        self,
        task: LedTask,
        what: str,
        tell: Callable[[str], None],
    ) -> None:
        """
        Args:
            task: The task whose machines they are.
            what: What such a machine is called, before its id.
            tell: Called with texts for users.
        """
        self._task = task
        self._what = what
        self._tell = tell
        self._closing = asyncio.Event()
        self._up: dict[str, Node] = {}
        self._answered: dict[str, float] = {}
        self.ready: set[str] = set()
        self.failures = 0
        self._launches: dict[str, str] = {}
        self._failed: set[str] = set()

    def came_together(self, names: Sequence[str]) -> None:
        """Notes the machines of one launch. If they fail, that counts once: one may take the others with it."""
        self._launches |= dict.fromkeys(names, names[0]) if names else {}

    def close(self) -> None:
        """Closes all connections. The machines stay as they are."""
        self._closing.set()
        for node in self._up.values():
            node.close()
        self._up.clear()

    async def look_after(self, instance: Instance) -> str:
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
            await self._give_up(node or self._node(instance), str(error))
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
        await self._give_up(node, finding.why, answers=finding.life is not ProbeAnswer.UNREACHABLE)
        return ""

    def forget(self, instance: Instance) -> None:
        """Closes the connection to a machine that is not looked after any more."""
        self.ready.discard(instance.id)
        if (node := self._up.pop(instance.id, None)) is not None:
            node.close()

    def _count_failure(self, instance: Instance) -> None:
        launch = self._launches.get(instance.id, instance.id)
        self.failures += launch not in self._failed
        self._failed.add(launch)

    async def _bring_up(self, node: Node) -> None:
        """Sends what the node needs and starts its agent. Raises NotUp."""
        task, record = self._task, self._task.journal.record
        bring_up = BringUp(
            task.asked,
            task.paths,
            record.id,
            record.name,
            SPARE,
            [node],
            None,
            task.agent,
            task.threads,
            Reachability([node], task.threads, lambda: "", lambda since: None),
        )
        await bring_up.start(self._closing)

    async def _give_up(self, node: Node, why: str, *, answers: bool = True) -> None:
        """Has a machine replaced."""
        self._tell(f"{node.name} is given up: {why}")
        self.forget(node.instance)
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
