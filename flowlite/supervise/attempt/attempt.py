"""Runs one attempt: starts the agents, follows the gang to its end, and collects everything it wrote.

The steps are safe to repeat. A supervisor that takes over starts again with the first:

    equip every node and start its agent (those that run or have finished are left alone) -> learn the leader's port and
    tell the other nodes -> follow the leader's events and streams -> fetch what is missing from the nodes' disks -> end

The leader decides how the gang ends. If it cannot be asked any more, its report on disk tells how. Without a report,
the leader is lost.
"""

from __future__ import annotations

import asyncio
import functools
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
from flowlite.node.system import trace
from flowlite.node.system.atomic_files import write_atomically
from flowlite.output import redact
from flowlite.supervise.attempt.fetch_outputs import KEEP_EVERY, RESULT, FetchOutputs
from flowlite.supervise.attempt.leader_events import LeaderEventFilter, trimmed
from flowlite.supervise.attempt.liveness import LivenessWatch
from flowlite.supervise.attempt.log_writer import LOGS, Collector
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer, Verdict
from flowlite.supervise.attempt.outcome import End, end_by_leader, end_by_reports, ended_whole
from flowlite.supervise.attempt.reachability import OUT_OF_REACH, Reachability
from flowlite.supervise.attempt.start_agents import BringUp, LeaderHasLeft, NotUp
from flowlite.supervise.attempt.unfetched import MissingOnNode
from flowlite.supervise.record.paths import TaskPaths
from flowlite.supervise.record.task_view import TaskView
from flowlite.supervise.threads import Threads
from flowlite.supervise.waiting import wait_for_event, wait_until

if TYPE_CHECKING:
    from flowlite.node.protocol.tls import TlsSession
    from flowlite.supervise.attempt.outputs.fetch import FetchedOutputs

# Phases of the leader in which no worker can have started.
_BEFORE_GO = ("", messages.GATHERING)
# Pause between two probes of an unreachable node that was given up.
_LOOK_EVERY = 1.0
# A node that takes longer than this to stop is probed meanwhile.
_LOOK_AFTER = 3.0
# How long a gang may take to stop, beyond the grace period, before its agents are ended one by one.
_STOP_SLACK = 15.0
# Timeout for reading the leader's address. It is read again after that.
_PLACE_SECONDS = 0.8
# How long a node that the leader has lost, but that answers us, may take to return its report.
_REPORT_SECONDS = 10.0
# After the end of the gang, a stream that is silent this long is abandoned, and the rest is fetched from the disks.
_STREAM_SLACK = 3.0


class Attempt:
    """One attempt of one task.

    Attributes:
        nodes: The nodes by rank.
    """

    def __init__(
        self,
        *,
        asked: TaskView,
        paths: TaskPaths,
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
            max_run_seconds: The longest run after GO, from here on.
            agent: The agent's zipapp on this machine, and its hash.
            on_event: Called with every event of the gang (see `flowlite.node.protocol.messages`).
            before_writing: Called before output is written. Raises if another supervisor has taken over.
            elsewhere: Returns the name of something else of the provider that answers now, or "" if nothing does.
            certain: Whether the provider knows what has ended, including machines that do not answer.
            paid_seconds: How long the money lasts from now on, bring-up included.
            began: Whether a supervisor before this one has found that the workers have started.
        """
        self._asked = asked
        self._paths = paths
        self._attempt = attempt
        self.nodes = nodes
        self._threads = threads
        self._on_event = on_event
        self._before_writing = before_writing
        self._certain = certain
        self._reach = Reachability(nodes, threads, elsewhere, self._tell_cut_off)
        self._bringup = BringUp(
            asked,
            paths,
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
        # Whether the leader has to make a last copy of checkpoints for all nodes, and has not said that it is made.
        self._copy_awaited = False
        self._heard = LeaderEventFilter(
            [node.instance.id for node in nodes], len(nodes) * asked.workers_per_node
        )
        self._collector = Collector(paths, attempt)
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
            asked.time_to_stop,
        )
        self._arrived = asyncio.Event()
        self._watch = LivenessWatch(nodes, self._reach)
        self._telling: asyncio.Task[None] | None = None
        # When the first node of an attempt that is being cleared is known to have been stopped. None if there is none.
        self._severed_at: float | None = None
        self._stop: tuple[str, str] | None = None
        self._stop_wanted = asyncio.Event()
        self._growth = ""
        self._growth_changed = asyncio.Event()
        self._stoppable = asyncio.Event()
        self._cancelled = asyncio.Event()
        self._given_up = asyncio.Event()
        self._outputs_given_up = asyncio.Event()
        self._brings_outputs = False
        self._leader: Mapping[str, Any] | None = None
        self._link: SupervisorClient | None = None
        # Why no connection to the leader can be opened until a person changes something; "" if that is not known.
        self._closed = ""
        self._relayed: frozenset[int] = frozenset()
        self._ended = False
        self._warned = False

    # Called by the supervisor

    @property
    def sending(self) -> str:
        """How much of the project has been sent to the nodes, in words, while it is; else ""."""
        return str(self._bringup.sending)

    def stop(self, kind: str, reason: str) -> None:
        """Requests the end of the gang. `kind` is a key of `messages.STOP_OUTCOMES`. Only the first request counts."""
        if kind == "cancel":
            if self._brings_outputs and not self._cancelled.is_set():
                self._outputs_given_up.set()
            self._cancelled.set()
            self._given_up.set()
        if self._stop is None:
            self._stop = (kind, reason)
            self._stop_wanted.set()

    def ask_to_grow(self, reason: str) -> None:
        """Has the ranks asked to stop at their next `should_stop()`; "" asks no more those that were not told yet."""
        self._growth = reason
        self._growth_changed.set()

    def give_up_collecting(self) -> None:
        """Stops waiting for files, since no money is left for nodes that wait to be collected."""
        self._given_up.set()
        self._outputs_given_up.set()

    async def bring_outputs(self, to: Path, end: End) -> FetchedOutputs:
        """Fetches the outputs to a directory on this machine, after `run`. A cancellation stops it."""
        # Imported only for tasks with outputs.
        from flowlite.supervise.attempt.outputs.fetch import OutputFetch

        fetch = OutputFetch(
            self._asked.outputs,
            to,
            self.nodes,
            self._reach,
            functools.partial(self._tell_collecting, end),
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
        with trace.span("collect"):
            end = await self._collect(end)
            await self._fetch_traces()
        # Nodes that will be taken away soon, or have a broken GPU, were still good enough to fetch their files.
        end.replace = tuple({*end.replace, *self._watch.vanishing, *self._watch.sick})
        if end.outcome == messages.FAILED and self._watch.sick:
            end.reason = f"{end.reason}; {'; '.join(self._watch.sick.values())}"
        return end

    @property
    def sick(self) -> Mapping[str, str]:
        """Instances whose machines were found to be broken, with what is wrong."""
        return self._watch.sick

    @property
    def out_of_reach(self) -> set[str]:
        """Instances that did not answer the last probe."""
        return self._reach.out_of_reach

    @property
    def in_doubt(self) -> bool:
        """Whether an instance did not answer the last probe, or is gone."""
        return self._reach.in_doubt

    async def clear(self) -> list[str]:
        """Makes sure that nothing of this attempt runs any more. Returns the instances that must not be used again."""
        given_up = time.monotonic()
        if self._link is not None and self._ended:
            # Agents that are released exit at once. An agent that gets a signal tries to stop its gang first.
            await self._link.release()
        unclear = await self._stop_all()
        if not self._certain:
            lost = [node for node in self.nodes if node.instance.id in unclear]
            # If no node was reached, the nodes may still reach each other and go on running.
            self._severed_at = None if len(lost) == len(self.nodes) else given_up
            await asyncio.gather(*(self._outlast(node) for node in lost))
        return unclear

    async def close(self) -> None:
        """Closes all connections and files. Does not affect the gang. May be called again."""
        if self._telling is not None:
            self._telling.cancel()
        if self._link is not None:
            await self._link.close()
        self._collector.close()
        for node in self.nodes:
            node.close()

    # Steps of an attempt

    async def _bring_up_and_follow(self) -> End:
        try:
            await self._bringup.start(self._stop_wanted)
            with trace.span("wait for the leader's address"):
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
        """Waits until nothing of this attempt can run any more on an unreachable node.

        The node stops its workers by itself a certain time after it, or its leader, began to miss a node that was
        stopped. If no node was stopped, because none is reachable or there is only one, the wait lasts until a node
        answers. Returns early if the task is cancelled.
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
            if finding.life is ProbeAnswer.GONE:
                return
            if finding.life is not ProbeAnswer.UNREACHABLE:
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
            await wait_for_event(self._cancelled, _LOOK_EVERY)

    def _tell_cut_off(self, since: float | None) -> None:
        self._on_event({"kind": "cut_off", "since": since, "refusal": self._reach.refusal})

    async def _stop_one(self, node: Node) -> bool:
        """Ends the agent of one node. False if the node is unreachable or the agent does not end."""
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
        """Ends the agents of all nodes that can be reached. Returns the ids of the other instances."""
        lost = list(self._watch.replace)
        reachable = [node for node in self.nodes if node.instance.id not in lost]
        gone = await asyncio.gather(*(self._stop_one(node) for node in reachable))
        unclear = [n.instance.id for n, is_gone in zip(reachable, gone, strict=True) if not is_gone]
        return [*lost, *unclear]

    # Following the gang

    def _make_link(
        self, leader: Mapping[str, Any], after: int, relayed: frozenset[int] = frozenset()
    ) -> SupervisorClient:
        """Returns a client of the leader. `relayed` are nodes whose results the leader relays."""
        node = self.nodes[0]

        async def dial() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            try:
                return await node.connection.open_tcp(str(leader["address"]), int(leader["port"]))
            except NodeUnreachable as error:
                if error.patience == 0:
                    self._closed = str(error)
                raise ConnectionError(str(error)) from error

        return SupervisorClient(
            task=self._paths.task_id,
            attempt=self._attempt,
            secret=self._paths.secret.read_bytes(),
            dial=dial,
            on_chunk=self._on_chunk,
            offsets=lambda: self._collector.offsets() | self._harvest.result_offsets(relayed),
            after=after,
            streams=(*LOGS, RESULT) if relayed else LOGS,
            new_tls=self._new_tls(),
        )

    def _new_tls(self) -> Callable[[], TlsSession] | None:
        if not self._bringup.encrypted:
            return None
        # Imported here because a supervisor of local nodes does not need ssl.
        from flowlite.node.protocol import tls

        return tls.client(self._paths.certificate(self._attempt))

    async def _follow(self, leader: dict[str, Any]) -> End:
        self._leader, after = leader, 0
        while True:
            self._link = self._make_link(leader, after)
            try:
                return await self._follow_link(self._link)
            except OSError:
                # Received data could not be written, most likely because the disk is full. The nodes keep it until
                # there is room.
                after = self._link.last_seq
                await self._link.close()
                await asyncio.sleep(KEEP_EVERY)

    async def _follow_link(self, link: SupervisorClient) -> End:
        watch = asyncio.create_task(self._watch.leader(link))
        stop = asyncio.create_task(self._pass_on_stop(link))
        listen = asyncio.create_task(self._listen(link))
        joining = asyncio.create_task(self._watch.joining(link))
        growing = asyncio.create_task(self._pass_on_growth(link))
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
            for task in (watch, stop, listen, joining, growing):
                task.cancel()
            await asyncio.gather(watch, stop, listen, joining, growing, return_exceptions=True)
        self._harvest.began = self._harvest.began or link.phase not in _BEFORE_GO
        # The listener has ended, so what a leader says while it is being stopped is ignored.
        return end or await self._without_leader(why)

    async def _listen(self, link: SupervisorClient) -> End | None:
        """Listens to the leader until the gang ends. Returns None if the leader closed the connection before that."""
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
                if self._closed and not link.phase:
                    # Its host runs commands, so it would be waited for as one that starts.
                    reason = f"{self.nodes[0].name}, the leader, cannot be followed: {self._closed}"
                    return End(messages.ERROR, reason)
            except LeaderRefused as error:
                return End(messages.ERROR, f"the gang belongs to another attempt: {error}")
            except messages.MessageError as error:
                return self._end_by_nonsense(error)

    def _end_by_nonsense(self, error: messages.MessageError) -> End:
        """Ends the attempt after a message that no agent sends. The leader's machine is not used again."""
        leader = self.nodes[0]
        reason = (
            f"{leader.name}, the leader, is lost: what it says is not what an agent says ({error}). Look at that "
            "machine: another program answers there, or somebody has changed ours"
        )
        self._on_event({"kind": "stopping", "outcome": messages.LOST, "reason": reason})
        return End(messages.LOST, reason, replace=(leader.instance.id,))

    def _handle(self, link: SupervisorClient, event: dict[str, Any]) -> None:
        kind = event["kind"]
        trace.mark(f"leader says: {kind}")
        if kind == "go":
            self._harvest.began = True
            self._copy_awaited = event.get("copies_for_all") is True
        elif kind == "copied":
            self._copy_awaited = False
        elif kind == "stoppable":
            self._stoppable.set()
        if kind in ("worker", "first_failure"):
            self._workers[int(event["rank"])] = event
        self._watch.handle(link, event)
        self._on_event(event)

    def _tell_leader_lost(self, link: SupervisorClient, finding: Finding) -> str:
        if self.nodes[0].instance.id in self._watch.replace and link.phase != "":
            reason = f"{self.nodes[0].name}, the leader, is lost: {finding.why}"
            self._on_event({"kind": "stopping", "outcome": messages.LOST, "reason": reason})
        return finding.why

    async def _without_leader(self, why: str) -> End:
        """Stops the other nodes after the leader is gone, and determines the end from the reports.

        Without a report of the leader, the leader is lost.
        """
        leader = self.nodes[0]
        answers = leader.instance.id not in self._watch.replace
        lived = answers and await self._threads.run(_report_or_none, leader) is None
        await self._stop_all()
        there = [node for node in self.nodes if node.instance.id not in self._watch.replace]
        reports = await self._threads.each(there, _report_or_none)
        for node, report in zip(there, reports, strict=True):
            node.report_seen = report
        world_size = len(self.nodes) * self._asked.workers_per_node
        stop = self._end_by_stop() if self._stop else None
        end = end_by_reports(
            self.nodes, self._workers, world_size, stop, self._on_event, lived=lived
        )
        if end.outcome == messages.LOST:
            end.reason = f"{self.nodes[0].name}, the leader, is lost: {why}"
        return end

    async def _pass_on_stop(self, link: SupervisorClient) -> End:
        """Passes a request to stop on to the leader, and ends the agents if the gang does not end in time."""
        await self._stop_wanted.wait()
        assert self._stop is not None
        await link.stop(*self._stop)
        await asyncio.sleep(self._asked.time_to_stop + _STOP_SLACK)
        await self._stop_all()
        return self._end_by_stop()

    async def _pass_on_growth(self, link: SupervisorClient) -> None:
        """Passes requests to grow on to the leader: once on each link, and whenever they change.

        "" is passed on, too: a link or supervisor before this one may have asked without taking it back. A leader that
        says "stoppable" is one that knows the message.
        """
        await self._stoppable.wait()
        while True:
            self._growth_changed.clear()
            await link.grow(self._growth)
            await self._growth_changed.wait()

    def _end_by_stop(self) -> End:
        assert self._stop is not None
        kind, reason = self._stop
        return End(messages.STOP_OUTCOMES.get(kind, messages.ERROR), reason)

    # Collecting

    def _noted_end(self) -> End | None:
        """Returns how the gang ended if an earlier supervisor recorded it. Only collecting is left then."""
        try:
            end = End.from_json(json.loads(self._paths.ended(self._attempt).read_bytes()))
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self._workers.update(end.workers)
        self._harvest.began = True
        return end

    async def _as_reported(self, end: End) -> End:
        """Corrects a loss if every rank ended well, as all events and reports say, and nothing is left to be copied."""
        world = range(len(self.nodes) * self._asked.workers_per_node)
        if end.outcome != messages.LOST or not self._workers:
            return end
        silent = {node_of(rank, self._asked.workers_per_node) for rank in world} - {
            int(body["node"]) for body in self._workers.values()
        }
        asked = [node for node in self.nodes if node.rank in silent]
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
        if not ended_whole(self._workers, len(world)):
            return end
        if self._copy_awaited:
            assert self._asked.checkpoint is not None
            what = (
                f"the last copy of the checkpoints to {self._asked.checkpoint['sync']} was not made"
            )
            return replace(end, reason=f"every rank ended well, but {what}: {end.reason}")
        return End(messages.DONE, "")

    def _note_end(self, end: End) -> None:
        if end.outcome in (messages.DONE, messages.FAILED):
            self._before_writing()
            # If the disk is full the end is not recorded, and the next supervisor asks the nodes again.
            with suppress(OSError):
                # Texts of workers may contain their secrets, and users read this file.
                told = redact.of_file(self._paths.secrets).inside(end.to_json())
                write_atomically(self._paths.ended(self._attempt), json.dumps(told).encode())

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
        """Waits for the streams to finish, then fetches the rest from the disks.

        Returns:
            The end, adjusted to what is missing.
        """
        while self._ended and self._harvest.behind and not self._given_up.is_set():
            self._arrived.clear()
            if not await self._arrives():
                break
        well = end.outcome == messages.DONE
        seen = await self._harvest.bring_in(
            self.nodes,
            ended_well=well,
            lost=end.replace,
            tell=functools.partial(self._tell_collecting, end),
            before_writing=self._before_writing,
            given_up=self._given_up,
            relay=self._relay,
        )
        if self._relayed and self._link is not None:
            # Members that we cannot reach are released through their leader.
            link, self._link = self._link, None
            await link.release()
        lacking = seen.lacking + await self._not_durable()
        if not lacking:
            return end
        end = replace(end, lacking=lacking, ended_well=well)
        if not well:
            return end
        # The ranks ended well, but the attempt did not, since files are missing.
        why = self._harvest.what_is_lacking(self.nodes, lacking)
        reason = f"every rank ended well, but {why}"
        if self._cancelled.is_set():
            return replace(end, outcome=messages.STOPPED, reason=reason)
        if self._given_up.is_set():
            return replace(end, outcome=messages.DEADLINE, reason=reason)
        if all(each.ours for each in lacking):
            return replace(end, outcome=messages.ERROR, reason=reason)
        missed = {self.nodes[each.node].instance.id for each in lacking if not each.ours}
        return replace(
            end, outcome=messages.LOST, reason=reason, replace=tuple({*end.replace, *missed})
        )

    def _tell_collecting(self, end: End, text: str) -> None:
        """Tells how the gang has ended, and what is still being fetched."""
        self._on_event(
            {"kind": "collecting", "text": text, "outcome": end.outcome, "reason": end.reason}
        )

    async def _fetch_traces(self) -> None:
        """Adds what the nodes' processes recorded to the trace of the task, if there is one."""
        if trace.recording():

            def fetch(node: Node) -> None:
                with suppress(ProviderError, OSError):
                    found = node.read_all("trace.json", trace.MOST_OF_A_NODE)
                    trace.add_of_node(self._paths.trace, found, node.rank)

            await self._threads.each(self.nodes, fetch)

    async def _not_durable(self) -> tuple[MissingOnNode, ...]:
        """Syncs everything that was fetched to disk before the nodes may remove it. Returns what may not be on disk."""
        try:
            with trace.span("sync output to disk"):
                await self._threads.run(self._paths.make_output_durable, self._attempt)
        except OSError as error:
            return self._harvest.doubted(self.nodes, error)
        return ()

    async def _arrives(self) -> bool:
        """Waits for more data from the streams. False if none came, or if collecting was given up."""
        arrived = asyncio.create_task(self._arrived.wait())
        await wait_until(self._given_up, arrived, seconds=_STREAM_SLACK)
        arrived.cancel()
        return self._arrived.is_set()

    async def _relay(self, nodes: frozenset[int]) -> None:
        """Makes the leader relay what these members hold, if the leader itself is reachable."""
        wanted = frozenset() if 0 in nodes else nodes
        over = self._link is not None and self._link.over
        if wanted == self._relayed and not (wanted and over):
            return
        if self._leader is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_PLACE_SECONDS):
                    self._leader = await self._threads.run(_place_or_none, self.nodes[0])
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
