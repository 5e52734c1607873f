"""One attempt: agents brought up on every node, the gang followed to its end, everything it wrote collected.

The way of an attempt, which a supervisor that takes over walks again from the start without harm:

    equip and start every agent (those that run or have finished are left alone) -> learn the leader's port, tell the
    others -> follow the leader's events and streams -> collect what is missing from the nodes' disks -> the end

The leader decides how the gang ends. Where it cannot be asked any more, its report on disk says it; where there is
none, the node is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node import messages
from flowlite.node.supervisor_link import LinkDown, LinkRefused, SupervisorLink
from flowlite.supervise.asked import Asked
from flowlite.supervise.bringup import BringUp, LeaderHasLeft, NotUp
from flowlite.supervise.collect import LOGS, Collector
from flowlite.supervise.crew import Crew
from flowlite.supervise.ends import End, end_by_leader, end_by_reports
from flowlite.supervise.harvest import KEEP_EVERY, Harvest
from flowlite.supervise.nodes import UNREACHABLE_PROBES, Life, Node
from flowlite.supervise.paths import TaskPaths

# The leader is asked through a second way this long after its line went dead, and again at this pace.
_PROBE_AFTER = 0.25
# A node that cannot be reached is probed again at this pace.
_PROBE_EVERY = 2.0
# How long, beyond the grace period, a gang that was told to stop may take before its agents are ended one by one.
_STOP_SLACK = 15.0
# How long nothing may come of the streams of a gang that has ended before the rest is fetched from the disks.
_STREAM_SLACK = 3.0

# No agent runs there, says the second source. Where it cannot be asked, only time tells.
_NO_AGENT = (Life.DEAD, Life.ABSENT, Life.GONE)
# Not to be used again: its machine is gone or out of reach.
_UNUSABLE = (Life.GONE, Life.UNREACHABLE)


class Attempt:
    """One attempt of one task."""

    def __init__(
        self,
        *,
        asked: Asked,
        paths: TaskPaths,
        task_id: str,
        name: str,
        attempt: int,
        nodes: list[Node],
        max_run_seconds: float | None,
        agent: tuple[Path, str],
        crew: Crew,
        on_event: Callable[[dict[str, Any]], None],
        before_writing: Callable[[], None],
    ) -> None:
        """
        Args:
            nodes: By rank.
            max_run_seconds: The longest run after GO, from here on.
            agent: The agent's zipapp on this machine, and its hash.
            on_event: Called with every event of the gang (see `flowlite.node.messages`).
            before_writing: Called before output is kept; raises if another supervisor leads now.
        """
        self._asked = asked
        self._paths = paths
        self._task_id = task_id
        self._attempt = attempt
        self._nodes = nodes
        self._crew = crew
        self._on_event = on_event
        self._before_writing = before_writing
        self._bringup = BringUp(
            asked, paths, task_id, name, attempt, nodes, max_run_seconds, agent, crew
        )
        self._workers: dict[int, dict[str, Any]] = {}
        self._collector = Collector(paths, attempt, asked.workers_per_node)
        self._harvest = Harvest(
            paths, attempt, asked.workers_per_node, self._collector, self._workers, crew
        )
        self._arrived = asyncio.Event()
        self._replace: dict[str, str] = {}
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._stop: tuple[str, str] | None = None
        self._stop_wanted = asyncio.Event()
        self._link: SupervisorLink | None = None
        self._ended = False
        self._warned = False

    # From outside

    def stop(self, kind: str, reason: str) -> None:
        """Asks for the end of the gang; kind as in `messages.STOP_OUTCOMES`. The first reason counts."""
        if self._stop is None:
            self._stop = (kind, reason)
            self._stop_wanted.set()

    async def run(self) -> End:
        """Brings the gang up, follows it to its end and collects everything."""
        end = await self._bring_up_and_follow()
        end.workers = self._workers
        end.replace = tuple({*end.replace, *self._replace})
        await self._collect(end)
        return end

    async def clear(self) -> list[str]:
        """Makes sure that nothing of this attempt runs any more; gives the instances where that is not known."""
        if self._link is not None and self._ended:
            # Agents that are let go leave at once; one that is signalled thinks it has to stop a gang.
            await self._link.release()
        return await self._stop_all()

    async def close(self) -> None:
        """Lets go of the gang, whatever it does. May be called again."""
        for task in self._probing.values():
            task.cancel()
        if self._link is not None:
            await self._link.close()
        self._collector.close()
        for node in self._nodes:
            node.close()

    # The way of an attempt

    async def _bring_up_and_follow(self) -> End:
        try:
            await self._bringup.start()
            leader = await self._bringup.find_leader(self._stop_wanted)
        except NotUp as error:
            outcome = messages.LOST if error.in_time else messages.MISSING
            return End(outcome, str(error), replace=error.replace)
        except LeaderHasLeft:
            return await self._without_leader("its agent has left")
        if leader is None:
            return self._end_by_stop()
        await self._bringup.tell_leader(leader)
        return await self._follow(leader)

    async def _stop_all(self) -> list[str]:
        """Ends the agents of all nodes that can be reached; gives the other instances."""
        reachable = [node for node in self._nodes if node.instance.id not in self._replace]
        gone = await self._crew.each(reachable, lambda node: node.stop(self._asked.grace))
        unclear = [n.instance.id for n, is_gone in zip(reachable, gone, strict=True) if not is_gone]
        return [*self._replace, *unclear]

    # Following

    def _make_link(self, leader: Mapping[str, Any], after: int) -> SupervisorLink:
        node = self._nodes[0]

        async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            try:
                return await node.connection.open_tcp(str(leader["address"]), int(leader["port"]))
            except NodeUnreachable as error:
                raise ConnectionError(str(error)) from error

        return SupervisorLink(
            task=self._task_id,
            epoch=self._attempt,
            secret=self._paths.secret.read_bytes(),
            dial=dial,
            on_chunk=self._on_chunk,
            offsets=self._collector.offsets,
            after=after,
            streams=LOGS,
        )

    async def _follow(self, leader: dict[str, Any]) -> End:
        after = 0
        while True:
            self._link = self._make_link(leader, after)
            try:
                return await self._follow_link(self._link)
            except OSError:
                # What came could not be kept: the disk is full. The nodes keep it until there is room.
                after = self._link.last_seq
                await self._link.close()
                await asyncio.sleep(KEEP_EVERY)

    async def _follow_link(self, link: SupervisorLink) -> End:
        watch = asyncio.create_task(self._watch_leader(link))
        stop = asyncio.create_task(self._pass_on_stop(link))
        listen = asyncio.create_task(self._listen(link))
        try:
            done, _ = await asyncio.wait({watch, stop, listen}, return_when=asyncio.FIRST_COMPLETED)
            for finished in (listen, watch, stop):
                if finished in done:
                    return finished.result()
            raise AssertionError("wait returned without a finished task")
        finally:
            for task in (watch, stop, listen):
                task.cancel()
            await asyncio.gather(watch, stop, listen, return_exceptions=True)

    async def _listen(self, link: SupervisorLink) -> End:
        while True:
            try:
                async for event in link.events():
                    self._handle(link, event)
                    if event["kind"] == "ended":
                        self._ended = True
                        return end_by_leader(event, self._workers)
                # Hung up although the gang has not ended: only a leader that gave up waiting for us does that.
                return await self._without_leader("its leader has left")
            except LinkDown:
                continue
            except LinkRefused as error:
                return End(messages.ERROR, f"the gang belongs to another attempt: {error}")

    def _handle(self, link: SupervisorLink, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind in ("worker", "first_failure"):
            self._workers[int(event["rank"])] = event
        if kind == "suspect" and event["instance"] not in self._probing:
            probe = self._confirm(link, event["instance"], str(event["why"]))
            self._probing[event["instance"]] = asyncio.create_task(probe)
        if kind == "back" and (probing := self._probing.pop(event["instance"], None)) is not None:
            probing.cancel()
        self._on_event(event)

    async def _confirm(self, link: SupervisorLink, instance: str, why: str) -> None:
        """The second source: a node that the leader misses is looked at through its own connection."""
        node = next(each for each in self._nodes if each.instance.id == instance)
        unreachable = 0
        while True:
            finding = await self._crew.run(node.probe)
            unreachable = unreachable + 1 if finding.life is Life.UNREACHABLE else 0
            if finding.life in _NO_AGENT or unreachable >= UNREACHABLE_PROBES:
                if finding.life in _UNUSABLE:
                    self._replace[instance] = finding.why
                await link.lost(instance, f"{why}; {finding.why}")
                return
            await asyncio.sleep(_PROBE_EVERY)

    async def _watch_leader(self, link: SupervisorLink) -> End:
        """Returns once the leader is known to be gone."""
        node, unreachable, down_since = self._nodes[0], 0, time.monotonic()
        while True:
            await asyncio.sleep(_PROBE_AFTER)
            if link.attached:
                unreachable, down_since = 0, time.monotonic()
                continue
            if time.monotonic() - down_since < _PROBE_AFTER:
                continue
            finding = await self._crew.run(node.probe)
            unreachable = unreachable + 1 if finding.life is Life.UNREACHABLE else 0
            if link.attached or link.phase == messages.ENDED:
                continue
            if finding.life in _NO_AGENT or unreachable >= UNREACHABLE_PROBES:
                if finding.life in _UNUSABLE:
                    self._replace[node.instance.id] = finding.why
                return await self._without_leader(finding.why)
            await asyncio.sleep(_PROBE_EVERY if finding.life is Life.UNREACHABLE else _PROBE_AFTER)

    async def _without_leader(self, why: str) -> End:
        """The leader is gone: the others are stopped, and the reports tell the end; without its own it is lost."""
        await self._stop_all()
        reports = await self._crew.each(self._nodes, _report_or_none)
        for node, report in zip(self._nodes, reports, strict=True):
            node.report_seen = report
        world_size = len(self._nodes) * self._asked.workers_per_node
        stop = self._end_by_stop() if self._stop else None
        end = end_by_reports(self._nodes, self._workers, world_size, stop, self._on_event)
        if end.outcome == messages.LOST:
            end.reason = f"{self._nodes[0].name}, the leader, is lost: {why}"
        return end

    async def _pass_on_stop(self, link: SupervisorLink) -> End:
        """Passes a wish to stop on to the leader, and sees to it that the gang ends within its time."""
        await self._stop_wanted.wait()
        assert self._stop is not None
        await link.stop(*self._stop)
        await asyncio.sleep(self._asked.grace + _STOP_SLACK)
        await self._stop_all()
        return self._end_by_stop()

    def _end_by_stop(self) -> End:
        assert self._stop is not None
        kind, reason = self._stop
        return End(messages.STOP_OUTCOMES.get(kind, messages.ERROR), reason)

    # Collecting

    def _on_chunk(
        self, rank: int, node: int, stream: str, offset: int, at: float, data: bytes
    ) -> None:
        self._before_writing()
        try:
            self._collector.add(rank, node, stream, offset, at, data)
        except OSError as error:
            self._warn_once(f"{self._paths.logs} cannot be written: {error.strerror}")
            raise
        self._arrived.set()

    async def _collect(self, end: End) -> None:
        """Waits for what is still on its way, then fetches the rest from the disks."""
        while self._ended and self._harvest.behind:
            self._arrived.clear()
            try:
                async with asyncio.timeout(_STREAM_SLACK):
                    await self._arrived.wait()
            except TimeoutError:
                break
        await self._harvest.bring_in(
            [node for node in self._nodes if node.instance.id not in end.replace],
            ended_well=end.outcome == messages.DONE,
            warn=self._warn_once,
            before_writing=self._before_writing,
        )

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            self._on_event({"kind": "warning", "text": f"logs wait on their nodes: {text}"})


def _report_or_none(node: Node) -> dict[str, Any] | None:
    try:
        return node.report()
    except (ProviderError, OSError):
        return None
