"""One attempt: agents brought up on every node, the gang followed to its end, everything it wrote collected.

The way of an attempt, which a supervisor that takes over walks again from the start without harm:

    equip and start every agent (those that run or have finished are left alone) -> learn the leader's port, tell the
    others -> follow the leader's events and streams -> collect what is missing from the nodes' disks -> the end

The leader decides how the gang ends. Where it cannot be asked any more, its report on disk says it; where there is
none, the node is lost.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node import messages
from flowlite.node.config import AgentConfig
from flowlite.node.supervisor_link import LinkDown, LinkRefused, SupervisorLink
from flowlite.supervise import reasons
from flowlite.supervise.asked import Asked
from flowlite.supervise.collect import LOGS, Collector, add_all
from flowlite.supervise.nodes import Life, Node, start_agents
from flowlite.supervise.paths import TaskPaths, local_call

Value = TypeVar("Value")

# A started agent that has not even said that it runs after this time will not come. A busy machine takes seconds.
_START_SECONDS = 30.0
# The leader is asked through a second way this long after its line went dead, and again at this pace.
_PROBE_AFTER = 0.25
_PROBE_EVERY = 2.0
# A node that cannot be reached is given up after so many probes in a row, at that pace.
_UNREACHABLE_PROBES = 10
# How long, beyond the grace period, a gang that was told to stop may take before its agents are ended one by one.
_STOP_SLACK = 15.0
# How long nothing may come of the streams of a gang that has ended before the rest is fetched from the disks.
_STREAM_SLACK = 3.0

# No agent runs there, says the second source. Where it cannot be asked, only time tells.
_NO_AGENT = (Life.DEAD, Life.ABSENT, Life.GONE)
# Not to be used again: its machine is gone or out of reach.
_UNUSABLE = (Life.GONE, Life.UNREACHABLE)


@dataclass(slots=True)
class End:
    """How an attempt ended.

    Attributes:
        outcome: One of `messages.OUTCOMES`.
        reason: One line for people.
        workers: The last report of each rank that is known to have ended.
        replace: Instances that must not be used again.
    """

    outcome: str
    reason: str
    workers: dict[int, dict[str, Any]] = field(default_factory=dict)
    replace: tuple[str, ...] = ()


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
        pool: ThreadPoolExecutor,
        on_event: Callable[[dict[str, Any]], None],
    ) -> None:
        self._asked = asked
        self._paths = paths
        self._task_id = task_id
        self._name = name
        self._attempt = attempt
        self._nodes = nodes
        self._max_run_seconds = max_run_seconds
        self._agent = agent
        self._pool = pool
        self._on_event = on_event
        self._collector = Collector(paths, attempt, asked.workers_per_node)
        self._arrived = asyncio.Event()
        self._workers: dict[int, dict[str, Any]] = {}
        self._replace: dict[str, str] = {}
        self._probing: dict[str, asyncio.Task[None]] = {}
        self._stop: tuple[str, str] | None = None
        self._stop_asked = 0.0
        self._stop_wanted = asyncio.Event()
        self._link: SupervisorLink | None = None
        self._ended: dict[str, Any] | None = None
        self._full = False

    # From outside

    def stop(self, kind: str, reason: str) -> None:
        """Asks for the end of the gang; kind as in `messages.STOP_OUTCOMES`. The first reason counts."""
        if self._stop is None:
            self._stop = (kind, reason)
            self._stop_asked = time.monotonic()
            self._stop_wanted.set()

    async def run(self) -> End:
        """Brings the gang up, follows it to its end and collects everything."""
        end = await self._bring_up_and_follow()
        await self._collect(end)
        return end

    async def clear(self) -> list[str]:
        """Makes sure that nothing of this attempt runs any more; gives the instances where that is not known."""
        if self._link is not None and self._ended is not None:
            # Agents that are let go leave at once; one that is signalled thinks it has to stop a gang.
            await self._link.release()
        return await self._stop_all()

    async def _stop_all(self) -> list[str]:
        """Ends the agents of all nodes that can be reached; gives the other instances."""
        reachable = [node for node in self._nodes if node.instance.id not in self._replace]
        gone = await self._each(reachable, lambda node: node.stop(self._asked.grace))
        unclear = [n.instance.id for n, is_gone in zip(reachable, gone, strict=True) if not is_gone]
        return [*self._replace, *unclear]

    async def close(self) -> None:
        """Lets go of the gang, whatever it does. May be called again."""
        for task in self._probing.values():
            task.cancel()
        if self._link is not None:
            await self._link.close()
        self._collector.close()
        for node in self._nodes:
            node.close()

    # Bringing up

    async def _bring_up_and_follow(self) -> End:
        failed = await self._bring_up()
        if failed:
            return self._not_brought_up(failed)
        leader = await self._find_leader()
        if isinstance(leader, End):
            return leader
        others = [node for node in self._nodes[1:] if node.report_seen is None]
        await self._each(others, lambda node: self._tell_leader(node, leader))
        return await self._follow(leader)

    async def _bring_up(self) -> dict[str, str]:
        """Starts every agent that has not run yet; gives what went wrong, by instance."""
        problems = await self._each(self._nodes, self._equip)
        failed = {n.instance.id: p for n, p in zip(self._nodes, problems, strict=True) if p}
        fresh = [node for node in self._nodes if not node.has_run]
        if failed or not fresh:
            return failed
        machines: dict[str, list[Node]] = {}
        for node in fresh:
            machines.setdefault(node.settings.warm_socket or node.instance.id, []).append(node)
        groups = list(machines.values())
        problems = await asyncio.gather(*(self._thread(_start, group) for group in groups))
        return {group[0].instance.id: p for group, p in zip(groups, problems, strict=True) if p}

    def _equip(self, node: Node) -> str:
        """Puts what the agent of one node needs, unless it has run already. "" or what went wrong."""
        try:
            node.report_seen = node.report()
            # One that has run is never started again in the same attempt, whatever became of it.
            node.has_run = node.started()
            if node.has_run:
                return ""
            if not node.listed:
                return "the provider does not list it any more"
            node.equip(
                self._config(node),
                local_call(self._asked.call),
                self._agent,
                self._paths.secret.read_bytes(),
                self._paths.secrets.read_bytes(),
            )
        except (ProviderError, OSError) as error:
            return str(error) or type(error).__name__
        return ""

    def _config(self, node: Node) -> AgentConfig:
        asked, settings = self._asked, node.settings
        gpus = {"count": asked.plan.gpus_per_node, "kind": asked.plan.gpu}
        return AgentConfig(
            task=self._task_id,
            name=self._name,
            epoch=self._attempt,
            instance=node.instance.id,
            roster=[each.instance.id for each in self._nodes],
            processes_per_node=asked.processes_per_node,
            mode=asked.mode,
            call=node_call(asked.call),
            environment=asked.environment,
            workdir=settings.workdir,
            python=settings.python,
            gpus=gpus if asked.plan.gpus_per_node else None,
            visible_gpus=settings.visible_gpus,
            volumes=[dict(volume) for volume in settings.volumes],
            stop_signal=asked.stop_signal,
            grace=asked.grace,
            join_timeout=asked.join_timeout,
            max_run_seconds=self._max_run_seconds,
            warm_socket=settings.warm_socket,
            bind=settings.bind,
            leader_address=self._nodes[0].instance.address,
            ports_dir=settings.ports_dir,
        )

    def _not_brought_up(self, failed: dict[str, str]) -> End:
        names = {node.instance.id: node.name for node in self._nodes}
        told = "; ".join(f"{names[instance]}: {why}" for instance, why in failed.items())
        return End(messages.LOST, f"the agent could not be started: {told}", replace=tuple(failed))

    async def _find_leader(self) -> dict[str, Any] | End:
        """Where the leader listens, or how the attempt ended because that cannot be known."""
        leader = self._nodes[0]
        began = time.monotonic()
        deadline = began + self._asked.join_timeout
        pause, probe_at, unreachable = 0.003, began + 1.0, 0
        while True:
            try:
                found = await self._thread(leader.read_json, "leader.json")
                report = leader.report_seen
                if found is not None and report is None:
                    return found
                if report is not None:
                    return self._end_from_reports()
                unreachable = 0
                if time.monotonic() > probe_at:
                    probe_at = time.monotonic() + 1.0
                    finding = await self._thread(leader.probe)
                    leader.report_seen = await self._thread(leader.report)
                    late = time.monotonic() > began + _START_SECONDS
                    gone = finding.life is Life.DEAD or (finding.life is Life.ABSENT and late)
                    if gone and leader.report_seen is None:
                        return End(messages.LOST, f"{leader.name}: {finding.why}")
            except NodeUnreachable as error:
                unreachable += 1
                if unreachable >= _UNREACHABLE_PROBES:
                    why = f"{leader.name} cannot be reached: {error}"
                    return End(messages.LOST, why, replace=(leader.instance.id,))
                pause = _PROBE_EVERY
            if self._stop is not None:
                return self._end_by_stop()
            if time.monotonic() > deadline:
                why = f"{leader.name}, the leader, did not say within {self._asked.join_timeout:.0f} s where it listens"
                return End(messages.MISSING, why)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop_wanted.wait(), pause)
            pause = min(0.2, pause * 1.2)

    def _tell_leader(self, node: Node, leader: dict[str, Any]) -> None:
        # One that cannot be told will be missing at the rendezvous, and is named there.
        with suppress(ProviderError, OSError):
            node.put_leader(leader)

    # Following

    def _make_link(self, leader: Mapping[str, Any]) -> SupervisorLink:
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
            streams=LOGS,
        )

    async def _follow(self, leader: dict[str, Any]) -> End:
        self._link = self._make_link(leader)
        watch = asyncio.create_task(self._watch_leader(self._link))
        stop = asyncio.create_task(self._pass_on_stop(self._link))
        listen = asyncio.create_task(self._listen(self._link))
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
                        return self._end_of(event)
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
            finding = await self._thread(node.probe)
            unreachable = unreachable + 1 if finding.life is Life.UNREACHABLE else 0
            if finding.life in _NO_AGENT or unreachable >= _UNREACHABLE_PROBES:
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
            finding = await self._thread(node.probe)
            unreachable = unreachable + 1 if finding.life is Life.UNREACHABLE else 0
            if link.attached or link.phase == messages.ENDED:
                continue
            if finding.life in _NO_AGENT or unreachable >= _UNREACHABLE_PROBES:
                if finding.life in _UNUSABLE:
                    self._replace[node.instance.id] = finding.why
                return await self._without_leader(finding.why)
            await asyncio.sleep(_PROBE_EVERY if finding.life is Life.UNREACHABLE else _PROBE_AFTER)

    async def _without_leader(self, why: str) -> End:
        """The leader is gone: the others are stopped, and the reports tell the end; without its own it is lost."""
        await self._stop_all()
        reports = await self._each(self._nodes, _report_or_none)
        for node, report in zip(self._nodes, reports, strict=True):
            node.report_seen = report
        end = self._end_from_reports()
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

    # The end

    def _end_of(self, event: dict[str, Any]) -> End:
        self._ended = event
        outcome, reason = str(event["outcome"]), str(event["reason"])
        first = event.get("first_failure")
        if outcome == messages.FAILED and first:
            reason = reasons.first_failure(first)
        unstopped = [i for i in event.get("unstopped", ()) if i in self._replace]
        return End(outcome, reason, self._workers, tuple({*self._replace, *unstopped}))

    def _end_by_stop(self) -> End:
        assert self._stop is not None
        kind, reason = self._stop
        return End(
            messages.STOP_OUTCOMES.get(kind, messages.ERROR),
            reason,
            self._workers,
            tuple(self._replace),
        )

    def _end_from_reports(self) -> End:
        """The end as the reports on the nodes' disks tell it. Its outcome is LOST where they do not."""
        leader = self._nodes[0].report_seen or {}
        for node in self._nodes:
            for body in (node.report_seen or {}).get("workers", ()):
                self._workers.setdefault(int(body["rank"]), {"node": node.rank, **body})
        bad = [body for body in self._workers.values() if reasons.failed_by_itself(body)]
        outcome, reason = leader.get("outcome"), str(leader.get("reason") or "")
        if outcome == messages.FAILED or (outcome is None and bad and self._stop is None):
            return self._failed_by_report(bad, reason)
        if outcome in messages.OUTCOMES:
            return End(str(outcome), reason, self._workers)
        if self._stop is not None:
            return self._end_by_stop()
        if len(self._workers) == len(self._nodes) * self._asked.workers_per_node and not bad:
            return End(messages.DONE, "", self._workers)
        return End(messages.LOST, "", self._workers, tuple(self._replace))

    def _failed_by_report(self, bad: list[dict[str, Any]], reason: str) -> End:
        # The leader names the rank that failed first; without it, clocks of several machines have to do.
        named = re.search(r"rank (\d+)", reason)
        first = self._workers.get(int(named[1])) if named else None
        if first is None:
            first = min(bad, key=lambda body: float(body.get("ended") or 0), default=None)
        for body in bad:
            self._on_event({**body, "kind": "worker"})
        if first is None:
            return End(messages.FAILED, reason, self._workers)
        self._on_event({**first, "kind": "first_failure"})
        return End(messages.FAILED, reasons.first_failure(first), self._workers)

    # Collecting

    def _on_chunk(
        self, rank: int, node: int, stream: str, offset: int, at: float, data: bytes
    ) -> None:
        try:
            self._collector.add(rank, node, stream, offset, at, data)
        except OSError as error:
            if not self._full:
                self._full = True
                text = f"logs wait on their nodes: {self._paths.logs} cannot be written: {error.strerror}"
                self._on_event({"kind": "warning", "text": text})
            raise
        self._full = False
        self._arrived.set()

    async def _collect(self, end: End) -> None:
        """Waits for what is still on its way, then fetches what is missing, and the results, from the disks."""
        while self._ended is not None and self._behind() and self._link is not None:
            self._arrived.clear()
            try:
                await asyncio.wait_for(self._arrived.wait(), _STREAM_SLACK)
            except TimeoutError:
                break
        clean = end.outcome == messages.DONE and not self._behind()
        await self._each(self._nodes, lambda node: self._fetch(node, clean))

    def _behind(self) -> bool:
        return any(
            self._collector.missing(rank, body.get("sizes") or {})
            for rank, body in self._workers.items()
        )

    def _fetch(self, node: Node, clean: bool) -> None:
        """Brings home what one node has: logs that did not come, results, and after a bad end the agent's own log."""
        ranks = range(
            node.rank * self._asked.workers_per_node, (node.rank + 1) * self._asked.workers_per_node
        )
        with suppress(ProviderError, OSError):
            for rank in ranks:
                body = self._workers.get(rank)
                wanted = LOGS if body is None else self._collector.missing(rank, body["sizes"])
                for stream in () if clean else wanted:
                    self._sweep(node, rank, stream)
                if body is None or (body.get("sizes") or {}).get("result"):
                    node.get(f"r{rank}.result", self._paths.result(self._attempt, rank))
            if not clean:
                node.get("agent.log", self._paths.agent_log(self._attempt, node.rank))

    def _sweep(self, node: Node, rank: int, stream: str) -> None:
        with suppress(FileNotFoundError):
            blocks = node.read(f"r{rank}.{stream}", self._collector.size(rank, stream))
            add_all(self._collector, rank, node.rank, stream, blocks, time.time())

    # Threads

    def _thread(self, function: Callable[..., Value], *arguments: Any) -> Awaitable[Value]:
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    async def _each(self, nodes: Iterable[Node], do: Callable[[Node], Value]) -> list[Value]:
        return await asyncio.gather(*(self._thread(do, node) for node in nodes))


def _start(nodes: list[Node]) -> str:
    try:
        start_agents(nodes)
    except (ProviderError, OSError) as error:
        return str(error) or type(error).__name__
    return ""


def _report_or_none(node: Node) -> dict[str, Any] | None:
    try:
        return node.report()
    except (ProviderError, OSError):
        return None


def node_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call with the paths it has on a node, relative to the node's directory."""
    if call.get("kind") != "function":
        return dict(call)
    source = [{**each, "zip": f"source-{each['sha256']}.zip"} for each in call.get("source", ())]
    return {**call, "bundle": "call.bin", "source": source}
