"""One attempt: agents brought up on every node, the gang followed to its end, everything it wrote collected.

The way of an attempt, which a supervisor that takes over walks again from the start without harm:

    equip and start every agent (those that run or have finished are left alone) -> learn the leader's port, tell the
    others -> follow the leader's events and streams -> collect what is missing from the nodes' disks -> the end

The leader decides how the gang ends. Where it cannot be asked any more, its report on disk says it; where there is
none, the node is lost.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.config import fencing
from flowlite.node.config.ranks import node_of
from flowlite.node.protocol import messages
from flowlite.node.rendezvous.supervisor_client import (
    LeaderRefused,
    LeaderUnreachable,
    SupervisorClient,
)
from flowlite.output import redact
from flowlite.supervise.attempt.bringup import BringUp, LeaderHasLeft, NotUp
from flowlite.supervise.attempt.fetch_outputs import KEEP_EVERY, RESULT, FetchOutputs
from flowlite.supervise.attempt.leader_events import Heard, trimmed
from flowlite.supervise.attempt.liveness import LivenessWatch
from flowlite.supervise.attempt.log_writer import LOGS, Collector
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import Life, Verdict
from flowlite.supervise.attempt.outcome import End, end_by_leader, end_by_reports, ended_whole
from flowlite.supervise.attempt.reachability import OUT_OF_REACH, Reachability
from flowlite.supervise.attempt.unfetched import Holding
from flowlite.supervise.record.paths import TaskPaths, write_private
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.threads import Threads

if TYPE_CHECKING:
    from flowlite.node.protocol.tls import TlsSession
    from flowlite.supervise.attempt.outputs.fetch import Brought

# What the leader has said when no worker can have started.
_BEFORE_GO = ("", messages.GATHERING)
# A node that is out of reach and was given up is looked at again at this pace.
_LOOK_EVERY = 1.0
# A node that takes longer to stop is looked at meanwhile.
_LOOK_AFTER = 3.0
# How long, beyond the grace period, a gang that was told to stop may take before its agents are ended one by one.
_STOP_SLACK = 15.0
# Where the leader listens is read within so long, or asked again.
_PLACE_SECONDS = 0.8
# A node that the leader has lost and that answers us has so long to give its report.
_REPORT_SECONDS = 10.0
# How long nothing may come of the streams of a gang that has ended before the rest is fetched from the disks.
_STREAM_SLACK = 3.0


class Attempt:
    """One attempt of one task."""

    def __init__(
        self,
        *,
        asked: TaskView,
        paths: TaskPaths,
        task_id: str,
        name: str,
        attempt: int,
        nodes: list[Node],
        max_run_seconds: float | None,
        agent: tuple[Path, str],
        threads: Threads,
        on_event: Callable[[dict[str, Any]], None],
        before_writing: Callable[[], None],
        elsewhere: Callable[[], str] = str,
        certain: bool = True,
        paid_seconds: float | None = None,
        began: bool = False,
    ) -> None:
        """
        Args:
            nodes: By rank.
            max_run_seconds: The longest run after GO, from here on.
            agent: The agent's zipapp on this machine, and its hash.
            on_event: Called with every event of the gang (see `flowlite.node.protocol.messages`).
            before_writing: Called before output is kept; raises if another supervisor leads now.
            elsewhere: Something of the provider beside these nodes that answers now, by name; "" if nothing does.
            certain: Whether the provider knows what has ended, also of machines that do not answer.
            paid_seconds: For how long from now on there is money, bring-up included.
            began: Whether its workers have started, as a supervisor before this one has found out.
        """
        self._asked = asked
        self._paths = paths
        self._task_id = task_id
        self._attempt = attempt
        self._nodes = nodes
        self._threads = threads
        self._on_event = on_event
        self._before_writing = before_writing
        self._certain = certain
        self._reach = Reachability(nodes, threads, elsewhere, self._tell_cut_off)
        self._bringup = BringUp(
            asked,
            paths,
            task_id,
            name,
            attempt,
            nodes,
            max_run_seconds,
            agent,
            threads,
            self._reach,
            paid_seconds,
            began,
        )
        self._workers: dict[int, dict[str, Any]] = {}
        self._heard = Heard(
            [node.instance.id for node in nodes], len(nodes) * asked.workers_per_node
        )
        self._collector = Collector(paths, attempt, asked.workers_per_node)
        self._harvest = FetchOutputs(
            paths,
            attempt,
            asked.workers_per_node,
            self._collector,
            self._workers,
            threads,
            self._reach,
            certain,
            began,
        )
        self._arrived = asyncio.Event()
        self._watch = LivenessWatch(nodes, self._reach)
        self._telling: asyncio.Task[None] | None = None
        # When the first node of a gang that was given up is known to have been stopped; None if none is.
        self._severed_at: float | None = None
        self._stop: tuple[str, str] | None = None
        self._stop_wanted = asyncio.Event()
        self._cancelled = asyncio.Event()
        self._given_up = asyncio.Event()
        self._outputs_given_up = asyncio.Event()
        self._brings_outputs = False
        self._leader: Mapping[str, Any] | None = None
        self._link: SupervisorClient | None = None
        self._relayed: frozenset[int] = frozenset()
        self._ended = False
        self._warned = False

    # From outside

    def stop(self, kind: str, reason: str) -> None:
        """Asks for the end of the gang; kind as in `messages.STOP_OUTCOMES`. The first reason counts."""
        if kind == "cancel":
            if self._brings_outputs and not self._cancelled.is_set():
                self._outputs_given_up.set()
            self._cancelled.set()
            self._given_up.set()
        if self._stop is None:
            self._stop = (kind, reason)
            self._stop_wanted.set()

    def give_up_collecting(self) -> None:
        """Nobody pays for nodes any more that wait to be collected."""
        self._given_up.set()
        self._outputs_given_up.set()

    async def bring_outputs(self, to: Path, end: End) -> Brought:
        """Brings the outputs to a directory here, after `run`. A cancel that comes meanwhile breaks it off."""
        # Few tasks have some.
        from flowlite.supervise.attempt.outputs.fetch import Fetch

        fetch = Fetch(
            self._asked.outputs,
            to,
            self._nodes,
            self._reach,
            lambda text: self._on_event({"kind": "collecting", "text": text}),
            self._before_writing,
        )
        self._brings_outputs = True
        return await fetch.bring(
            ended_well=end.outcome == messages.DONE,
            lost=end.replace,
            given_up=self._outputs_given_up,
        )

    async def run(self) -> End:
        """Brings the gang up, follows it to its end and collects everything."""
        end = self._noted_end() or await self._as_reported(await self._bring_up_and_follow())
        end.workers = self._workers
        end.replace = tuple({*end.replace, *self._watch.replace})
        self._note_end(end)
        end = await self._collect(end)
        # Until now they were good enough to bring home what they have.
        end.replace = tuple({*end.replace, *self._watch.vanishing})
        return end

    @property
    def nodes(self) -> list[Node]:
        """By rank."""
        return self._nodes

    @property
    def out_of_reach(self) -> set[str]:
        """Instances that did not answer when they were last asked."""
        return self._reach.out_of_reach

    @property
    def in_doubt(self) -> bool:
        """Whether an instance did not answer when it was last asked, or is gone."""
        return self._reach.in_doubt

    async def clear(self) -> list[str]:
        """Makes sure that nothing of this attempt runs any more; gives the instances not to be used again."""
        given_up = time.monotonic()
        if self._link is not None and self._ended:
            # Agents that are let go leave at once; one that is signalled thinks it has to stop a gang.
            await self._link.release()
        unclear = await self._stop_all()
        if not self._certain:
            lost = [node for node in self._nodes if node.instance.id in unclear]
            # Nodes of which none was reached may hear each other, and run on.
            self._severed_at = None if len(lost) == len(self._nodes) else given_up
            await asyncio.gather(*(self._outlast(node) for node in lost))
        return unclear

    async def close(self) -> None:
        """Lets go of the gang, whatever it does. May be called again."""
        if self._telling is not None:
            self._telling.cancel()
        if self._link is not None:
            await self._link.close()
        self._collector.close()
        for node in self._nodes:
            node.close()

    # The way of an attempt

    async def _bring_up_and_follow(self) -> End:
        try:
            await self._bringup.start(self._stop_wanted)
            leader = await self._bringup.find_leader(self._stop_wanted)
        except NotUp as error:
            outcome = messages.LOST if error.in_time else messages.MISSING
            return End(outcome, str(error), replace=error.replace)
        except LeaderHasLeft:
            return await self._without_leader("its agent has left")
        if leader is None:
            return self._end_by_stop()
        self._telling = asyncio.create_task(self._bringup.tell_leader(leader))
        return await self._follow(leader)

    async def _outlast(self, node: Node) -> None:
        """Waits until nothing of this attempt can run any more on a node that is out of reach.

        It has stopped its workers by itself a certain time after it, or its leader, began to miss a node that was
        stopped. Where none was, since none can be reached, or there is but one, only an answer helps. Ends early if the
        task is cancelled.
        """
        told = False
        while not self._cancelled.is_set():
            until = math.inf
            if self._severed_at is not None:
                grace = self._asked.grace
                until = fencing.replaced_from(self._severed_at, fencing.FENCE_AFTER, grace)
            if time.monotonic() >= until:
                return
            finding = await self._reach.look(node)
            if finding.life is Life.GONE:
                return
            if finding.life is not Life.UNREACHABLE:
                await self._threads.run(node.stop, self._asked.time_to_stop)
                if self._severed_at is None:
                    self._severed_at = time.monotonic()
                return
            if not told:
                told = True
                seconds = until - time.monotonic()
                when = "as soon as a node answers"
                if math.isfinite(seconds):
                    when = f"in {seconds:.0f} s at the latest"
                what = "it must be certain that nothing runs there any more"
                text = f"{node.name} is out of reach; a new attempt begins {when}, since {what}"
                self._on_event({"kind": "fencing", "text": text})
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY):
                    await self._cancelled.wait()

    def _tell_cut_off(self, since: float | None) -> None:
        self._on_event({"kind": "cut_off", "since": since})

    async def _stop_one(self, node: Node) -> bool:
        """Ends the agent of one node. False if it is out of reach, or does not end."""
        stopping = asyncio.ensure_future(self._threads.run(node.stop, self._asked.time_to_stop))
        while True:
            await asyncio.wait({stopping}, timeout=_LOOK_AFTER)
            if stopping.done():
                return stopping.result()
            verdict, finding = await self._reach.judge_alone(node)
            if verdict is Verdict.LOST and finding.life in OUT_OF_REACH:
                self._watch.note(node, finding)
                return False

    async def _stop_all(self) -> list[str]:
        """Ends the agents of all nodes that can be reached; gives the other instances."""
        lost = list(self._watch.replace)
        reachable = [node for node in self._nodes if node.instance.id not in lost]
        gone = await asyncio.gather(*(self._stop_one(node) for node in reachable))
        unclear = [n.instance.id for n, is_gone in zip(reachable, gone, strict=True) if not is_gone]
        return [*lost, *unclear]

    # Following

    def _make_link(
        self, leader: Mapping[str, Any], after: int, relayed: frozenset[int] = frozenset()
    ) -> SupervisorClient:
        """A line to the leader; `relayed` are nodes whose results come through it, too."""
        node = self._nodes[0]

        async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            try:
                return await node.connection.open_tcp(str(leader["address"]), int(leader["port"]))
            except NodeUnreachable as error:
                raise ConnectionError(str(error)) from error

        return SupervisorClient(
            task=self._task_id,
            epoch=self._attempt,
            secret=self._paths.secret.read_bytes(),
            dial=dial,
            on_chunk=self._on_chunk,
            offsets=lambda: self._collector.offsets() | self._harvest.result_offsets(relayed),
            after=after,
            streams=(*LOGS, RESULT) if relayed else LOGS,
            shields=self._shields(),
        )

    def _shields(self) -> Callable[[], TlsSession] | None:
        if not self._bringup.encrypted:
            return None
        # Only here: a supervisor of local nodes does not need ssl.
        from flowlite.node.protocol import tls

        return tls.client(self._paths.certificate(self._attempt))

    async def _follow(self, leader: dict[str, Any]) -> End:
        self._leader, after = leader, 0
        while True:
            self._link = self._make_link(leader, after)
            try:
                return await self._follow_link(self._link)
            except OSError:
                # What came could not be kept: the disk is full. The nodes keep it until there is room.
                after = self._link.last_seq
                await self._link.close()
                await asyncio.sleep(KEEP_EVERY)

    async def _follow_link(self, link: SupervisorClient) -> End:
        watch = asyncio.create_task(self._watch.leader(link))
        stop = asyncio.create_task(self._pass_on_stop(link))
        listen = asyncio.create_task(self._listen(link))
        joining = asyncio.create_task(self._watch.joining(link))
        self._watch.follow(link)
        try:
            await asyncio.wait({watch, stop, listen}, return_when=asyncio.FIRST_COMPLETED)
            if listen.done() or not watch.done():
                end = listen.result() if listen.done() else stop.result()
                why = "its leader has left"
            else:
                end, why = None, self._tell_leader_lost(link, watch.result())
        finally:
            self._watch.close()
            for task in (watch, stop, listen, joining):
                task.cancel()
            await asyncio.gather(watch, stop, listen, joining, return_exceptions=True)
        self._harvest.began = self._harvest.began or link.phase not in _BEFORE_GO
        # Nobody listens any more: what a leader says that is being stopped is no news.
        return end or await self._without_leader(why)

    async def _listen(self, link: SupervisorClient) -> End | None:
        """The end as the leader tells it; None if it gave up waiting for us, and hung up before the gang has ended."""
        while True:
            try:
                async for said in link.events():
                    event = self._heard.event(said)
                    if event is None:
                        continue
                    self._handle(link, event)
                    if event["kind"] == "ended":
                        self._ended = True
                        return end_by_leader(event, self._workers)
                return None
            except LeaderUnreachable:
                continue
            except LeaderRefused as error:
                return End(messages.ERROR, f"the gang belongs to another attempt: {error}")
            except messages.MessageError as error:
                return self._end_by_nonsense(error)

    def _end_by_nonsense(self, error: messages.MessageError) -> End:
        """The leader says what no agent says: its machine is not used again."""
        leader = self._nodes[0]
        reason = (
            f"{leader.name}, the leader, is lost: what it says is not what an agent says ({error}). Look at that "
            "machine: another program answers there, or somebody has changed ours"
        )
        self._on_event({"kind": "stopping", "outcome": messages.LOST, "reason": reason})
        return End(messages.LOST, reason, replace=(leader.instance.id,))

    def _handle(self, link: SupervisorClient, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "go":
            self._harvest.began = True
        if kind in ("worker", "first_failure"):
            self._workers[int(event["rank"])] = event
        self._watch.handle(link, event)
        self._on_event(event)

    def _tell_leader_lost(self, link: SupervisorClient, finding: Finding) -> str:
        if self._nodes[0].instance.id in self._watch.replace and link.phase != "":
            reason = f"{self._nodes[0].name}, the leader, is lost: {finding.why}"
            self._on_event({"kind": "stopping", "outcome": messages.LOST, "reason": reason})
        return finding.why

    async def _without_leader(self, why: str) -> End:
        """The leader is gone: the others are stopped, and the reports tell the end; without its own it is lost."""
        leader = self._nodes[0]
        answers = leader.instance.id not in self._watch.replace
        lived = answers and await self._threads.run(_report_or_none, leader) is None
        await self._stop_all()
        there = [node for node in self._nodes if node.instance.id not in self._watch.replace]
        reports = await self._threads.each(there, _report_or_none)
        for node, report in zip(there, reports, strict=True):
            node.report_seen = report
        world_size = len(self._nodes) * self._asked.workers_per_node
        stop = self._end_by_stop() if self._stop else None
        end = end_by_reports(
            self._nodes, self._workers, world_size, stop, self._on_event, lived=lived
        )
        if end.outcome == messages.LOST:
            end.reason = f"{self._nodes[0].name}, the leader, is lost: {why}"
        return end

    async def _pass_on_stop(self, link: SupervisorClient) -> End:
        """Passes a wish to stop on to the leader, and sees to it that the gang ends within its time."""
        await self._stop_wanted.wait()
        assert self._stop is not None
        await link.stop(*self._stop)
        await asyncio.sleep(self._asked.time_to_stop + _STOP_SLACK)
        await self._stop_all()
        return self._end_by_stop()

    def _end_by_stop(self) -> End:
        assert self._stop is not None
        kind, reason = self._stop
        return End(messages.STOP_OUTCOMES.get(kind, messages.ERROR), reason)

    # Collecting

    def _noted_end(self) -> End | None:
        """How the gang has ended, if a supervisor before this one has found that out: only collecting is left."""
        try:
            end = End.from_json(json.loads(self._paths.ended(self._attempt).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self._workers.update(end.workers)
        self._harvest.began = True
        return end

    async def _as_reported(self, end: End) -> End:
        """A node that the leader lost may have been done, as it has noted: then only the way there was lost."""
        world = range(len(self._nodes) * self._asked.workers_per_node)
        if end.outcome != messages.LOST or not self._workers:
            return end
        silent = {node_of(rank, self._asked.workers_per_node) for rank in world} - {
            int(body["node"]) for body in self._workers.values()
        }
        asked = [node for node in self._nodes if node.rank in silent]
        if any(node.instance.id in {*end.replace, *self._watch.replace} for node in asked):
            return end
        with suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_SECONDS):
                reports = await self._threads.each(asked, _report_or_none)
            for node, report in zip(asked, reports, strict=True):
                for body in (report or {}).get("workers", ()):
                    if self._heard.is_on(body["rank"], node.rank):
                        known = {**trimmed(body), "node": node.rank}
                        self._workers.setdefault(body["rank"], known)
        return End(messages.DONE, "") if ended_whole(self._workers, len(world)) else end

    def _note_end(self, end: End) -> None:
        if end.outcome in (messages.DONE, messages.FAILED):
            self._before_writing()
            # On a full disk, another supervisor would ask the nodes again.
            with suppress(OSError):
                # What workers said may hold their secrets, which people must not find in it.
                told = redact.of_file(self._paths.secrets).inside(end.to_json())
                write_private(self._paths.ended(self._attempt), json.dumps(told).encode())

    def _on_chunk(
        self, rank: int, node: int, stream: str, offset: int, at: float, data: bytes
    ) -> None:
        self._heard.check_chunk(rank, node)
        self._before_writing()
        try:
            if stream == RESULT:
                self._harvest.take(rank, offset, data)
            else:
                self._collector.add(rank, node, stream, offset, at, data)
        except OSError as error:
            self._warn_once(f"{self._paths.logs} cannot be written: {error.strerror}")
            raise
        self._arrived.set()

    async def _collect(self, end: End) -> End:
        """Waits for what is still on its way, then fetches the rest from the disks. The end, in the light of that."""
        while self._ended and self._harvest.behind and not self._given_up.is_set():
            self._arrived.clear()
            if not await self._arrives():
                break
        well = end.outcome == messages.DONE
        seen = await self._harvest.bring_in(
            self._nodes,
            ended_well=well,
            lost=end.replace,
            tell=lambda text: self._on_event({"kind": "collecting", "text": text}),
            before_writing=self._before_writing,
            given_up=self._given_up,
            relay=self._relay,
        )
        if self._relayed and self._link is not None:
            # Members that we do not reach can be told by their leader only that nobody needs them any more.
            link, self._link = self._link, None
            await link.release()
        lacking = seen.lacking + await self._not_durable()
        if not lacking:
            return end
        end = replace(end, lacking=lacking, ended_well=well)
        if not well:
            return end
        # The ranks have ended well, and the task has not.
        why = self._harvest.what_is_lacking(self._nodes, lacking)
        reason = f"every rank ended well, but {why}"
        if self._cancelled.is_set():
            return replace(end, outcome=messages.STOPPED, reason=reason)
        if self._given_up.is_set():
            return replace(end, outcome=messages.DEADLINE, reason=reason)
        if all(each.ours for each in lacking):
            return replace(end, outcome=messages.ERROR, reason=reason)
        missed = {self._nodes[each.node].instance.id for each in lacking if not each.ours}
        return replace(
            end, outcome=messages.LOST, reason=reason, replace=tuple({*end.replace, *missed})
        )

    async def _not_durable(self) -> tuple[Holding, ...]:
        """Has all that came put on disk, before anybody may remove what the nodes hold; gives what may not be there."""
        try:
            await self._threads.run(self._paths.make_output_durable, self._attempt)
        except OSError as error:
            return self._harvest.doubted(self._nodes, error)
        return ()

    async def _arrives(self) -> bool:
        """Waits until something comes of the streams. False if nothing does, or nobody waits any more."""
        waiting = [asyncio.create_task(each.wait()) for each in (self._arrived, self._given_up)]
        await asyncio.wait(waiting, timeout=_STREAM_SLACK, return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        return self._arrived.is_set()

    async def _relay(self, nodes: frozenset[int]) -> None:
        """Has the leader pass on what these members hold, if it answers itself."""
        wanted = frozenset() if 0 in nodes else nodes
        over = self._link is not None and self._link.over
        if wanted == self._relayed and not (wanted and over):
            return
        if self._leader is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PLACE_SECONDS):
                    self._leader = await self._threads.run(_place_or_none, self._nodes[0])
        if self._leader is None:
            return
        after = 0
        if self._link is not None:
            after = self._link.last_seq
            await self._link.close()
        self._relayed = wanted
        self._link = self._make_link(self._leader, after, wanted)
        self._link.start()

    def _warn_once(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            self._on_event({"kind": "warning", "text": f"logs wait on their nodes: {text}"})


def _report_or_none(node: Node) -> dict[str, Any] | None:
    try:
        return node.report()
    except (ProviderError, OSError):
        return None


def _place_or_none(leader: Node) -> dict[str, Any] | None:
    try:
        return leader.read_json("leader.json")
    except (ProviderError, OSError):
        return None
