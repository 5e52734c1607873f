"""Fetches logs, results and reports of a gang from the nodes' disks before the nodes are given back.

Each node is asked through its own connection. The files of a member that cannot be reached from here are relayed by
its leader, as its logs are while it runs (`relay`). `unfetched.py` decides what follows from what is missing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

from flowlite.connect.fetching import Partial
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.config.ranks import global_rank, node_of
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.byte_sizes import human_size
from flowlite.output import redact
from flowlite.supervise.attempt import unfetched
from flowlite.supervise.attempt.log_writer import Collector, logs_of
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer
from flowlite.supervise.attempt.reachability import GivenUp, NodeLost, Reachability
from flowlite.supervise.attempt.unfetched import HoldingPlace, MissingFilesDecision, MissingOnNode
from flowlite.supervise.record.paths import TaskPaths
from flowlite.supervise.threads import Threads
from flowlite.supervise.waiting import wait_until

RESULT = "result"
# Pause before a failed write or fetch is tried again, and between two looks at what is missing.
KEEP_EVERY = 1.0
# Once waiting was given up, data already on its way from nodes that answer may arrive for this long.
_MOMENT = 4.0
# So many bytes more mean that files are coming, however long that takes.
_PROGRESS = 1 << 20
# A wait shorter than this is not reported.
_TELL_AFTER = 1.0
_OUR_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

Relay = Callable[[frozenset[int]], Awaitable[None]]
"""Makes the leader relay what these nodes hold, and nothing of the others."""


@dataclass(slots=True)
class _State:
    """Progress of fetching from one node.

    Attributes:
        place: Whether the node answers, is silent, or is gone.
        since: Unix time since which it has not answered; 0 if it answers.
        swept: Whether its files were read to the end.
        trouble: Why its files could not be fetched; "" if nothing went wrong.
        ours: Whether the disk of this machine is the cause.
        stopping: Whether its workers are being stopped, since nobody has heard of their end.
    """

    place: HoldingPlace = HoldingPlace.ANSWERS
    since: float = 0.0
    swept: bool = False
    trouble: str = ""
    ours: bool = False
    stopping: bool = False


@dataclass(eq=False, repr=False)
class FetchOutputs:
    """Fetches what one attempt left on its nodes.

    Attributes:
        workers: Reports of the workers that are known to have ended, by rank.
        certain: Whether the provider knows what does not exist any more.
        began: Whether workers may have run.
        time_to_stop: Seconds that a node may take to stop its workers.
    """

    paths: TaskPaths
    attempt: int
    workers_per_node: int
    collector: Collector
    workers: Mapping[int, Mapping[str, Any]]
    threads: Threads
    reach: Reachability
    certain: bool = True
    began: bool = False
    time_to_stop: float = 0.0
    _states: dict[int, _State] = field(default_factory=dict)

    @property
    def behind(self) -> bool:
        """Whether logs are missing that are known to exist."""
        return any(self._logs_missing(rank) for rank in self.workers)

    async def bring_in(
        self,
        nodes: Sequence[Node],
        *,
        ended_well: bool,
        lost: Collection[str],
        tell: Callable[[str], None],
        before_writing: Callable[[], None],
        given_up: asyncio.Event,
        relay: Relay,
    ) -> MissingFilesDecision:
        """Fetches the results, missing logs and, unless every rank ended well, the agents' logs.

        Args:
            nodes: The nodes by rank.
            ended_well: Whether every rank ended well.
            lost: Instances that the gang has lost. They are asked again only if every rank ended well: the task then
                lacks nothing but what they hold, and they may have been silent for a while only.
            tell: Called with what is being waited for, whenever that changes.
            before_writing: Raises if another supervisor has taken over.
            given_up: Set when waiting ends. Missing files then stay where they are.
            relay: Makes the leader relay the files of unreachable nodes.

        Returns:
            What was not fetched.
        """
        clean = ended_well and not self.behind
        left_alone = () if ended_well else lost
        self._states = {node.rank: _State() for node in nodes}
        for node in nodes:
            if node.instance.id in left_alone:
                self._silent(node, Finding(ProbeAnswer.UNREACHABLE, "it is lost"))
        before_writing()
        over = asyncio.Event()
        tasks = {
            asyncio.create_task(self._bring(node, clean, over)): node
            for node in nodes
            if node.instance.id not in left_alone and (not clean or self._files(node.rank))
        }
        patience, told = _Patience(), ""
        try:
            while True:
                for task in [task for task in tasks if task.done()]:
                    del tasks[task]
                    task.result()
                patience.pass_time(self._arrived, cut_off=self.reach.cut_off_since is not None)
                seen = self._outlook(nodes, ended_well, patience.waited, given_up.is_set())
                hurry = given_up.is_set() and patience.hurries(stopping=self._stopping)
                wait = patience.lasts and self._worth_waiting(tasks.values(), clean, given_up)
                if seen.over and (hurry or not wait):
                    return seen
                before_writing()
                await relay(frozenset(self._out_of_reach(nodes)))
                text = self._waiting(nodes, seen, patience.waited)
                if text and text != told and patience.waited > _TELL_AFTER:
                    told = text
                    tell(text)
                await _any_of(tasks, given_up)
        finally:
            over.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def take(self, rank: int, offset: int, data: bytes) -> None:
        """Writes a piece of a result that the leader relayed. Raises OSError."""
        partial = self._partial(rank)
        if partial is not None and not partial.whole:
            if offset == 0:
                partial.begin()
            if partial.add(offset, data) >= partial.size:
                partial.finish()

    def result_offsets(self, relayed: frozenset[int]) -> dict[str, int]:
        """Returns the offsets from which the leader sends results. Those of nodes that are not relayed are not sent."""
        found = {}
        for rank in self.workers:
            partial = self._partial(rank)
            if partial is not None:
                wanted = node_of(rank, self.workers_per_node) in relayed
                found[f"{rank}.{RESULT}"] = (
                    min(partial.have, partial.size) if wanted else partial.size
                )
        return found

    def doubted(self, nodes: Sequence[Node], error: OSError) -> tuple[MissingOnNode, ...]:
        """Returns everything the nodes hold, when fetched data may not be on the disk of this machine."""
        trouble = f"{self.paths.directory} may not be on disk: {error.strerror or error}"
        found = []
        for node in nodes:
            sizes = {rank: self._sizes(rank) or {} for rank in self._ranks(node.rank)}
            files = [(f"r{r}.{name}", size) for r, of in sizes.items() for name, size in of.items()]
            found.append(
                MissingOnNode(node.rank, tuple(files), HoldingPlace.ANSWERS, trouble, ours=True)
            )
        return tuple(each for each in found if not each.complete)

    def _worth_waiting(self, nodes: Collection[Node], clean: bool, given_up: asyncio.Event) -> bool:
        """Whether nodes that are not waited for still deliver data, such as the agents' logs after a failure."""
        if clean and not given_up.is_set():
            return False
        away = self.reach.out_of_reach
        states = (self._states[node.rank] for node in nodes if node.instance.id not in away)
        return any(each.place is HoldingPlace.ANSWERS and not each.trouble for each in states)

    def _out_of_reach(self, nodes: Sequence[Node]) -> list[int]:
        """Returns the unreachable nodes that hold files, lost or not, and notes since when they are unreachable."""
        away, found = self.reach.out_of_reach, []
        for node in nodes:
            state = self._states[node.rank]
            if node.instance.id in away or state.place is HoldingPlace.SILENT:
                state.since = state.since or time.time()
                found += [node.rank] if self._files(node.rank) else []
            else:
                state.since = 0.0
        return found

    def _arrived(self) -> int:
        """Returns how many bytes of logs and results are here."""
        found = self.collector.total
        # The directory may have been removed by the user; what cannot be written is told where it is written.
        with suppress(FileNotFoundError), os.scandir(self.paths.results) as entries:
            for entry in entries:
                # A file that is complete loses its temporary name.
                with suppress(FileNotFoundError):
                    found += entry.stat().st_size
        return found

    # One node

    async def _bring(self, node: Node, clean: bool, over: asyncio.Event) -> None:
        """Fetches everything one node holds. If the node never answers, runs until cancelled."""
        state = self._states[node.rank]
        while True:
            try:
                problem = await self.reach.persist(
                    node, lambda it: self._fetch(it, clean), over, changes=False
                )
            except GivenUp:
                return
            except NodeLost as error:
                self._silent(node, error.finding)
                if state.place is HoldingPlace.GONE:
                    return
                await self._until_it_answers(node)
                if not self._files(node.rank):
                    return
                continue
            except (NodeUnreachable, OSError) as error:
                # Another host answers at the node's address, which the user has to resolve.
                problem = error
            if problem is None:
                state.swept = True
                return
            state.place, state.trouble, state.ours = (
                HoldingPlace.ANSWERS,
                str(problem),
                _is_ours(problem),
            )
            await asyncio.sleep(KEEP_EVERY)

    def _silent(self, node: Node, finding: Finding) -> None:
        state = self._states[node.rank]
        state.since = state.since or time.time()
        state.trouble = finding.why
        gone = finding.life is ProbeAnswer.GONE and self.certain
        state.place = HoldingPlace.GONE if gone else HoldingPlace.SILENT

    async def _until_it_answers(self, node: Node) -> None:
        state = self._states[node.rank]
        while self._files(node.rank):
            # Also finds out whether our own network is down.
            _, finding = await self.reach.judge_alone(node)
            if finding.life is ProbeAnswer.GONE:
                self._silent(node, finding)
                if state.place is HoldingPlace.GONE:
                    return
            elif finding.life is not ProbeAnswer.UNREACHABLE:
                break
            await asyncio.sleep(KEEP_EVERY)
        state.place, state.trouble = HoldingPlace.ANSWERS, ""

    @property
    def _stopping(self) -> bool:
        """Whether a node that answers still stops its workers."""
        states = self._states.values()
        return any(each.stopping and each.place is HoldingPlace.ANSWERS for each in states)

    def _stop(self, node: Node) -> None:
        """Stops the workers of a node that may not have heard of the gang's end.

        What they wrote after their files were fetched would be lost.
        """
        if self.began and any(rank not in self.workers for rank in self._ranks(node.rank)):
            state = self._states[node.rank]
            state.stopping = True
            try:
                node.stop(self.time_to_stop)
            finally:
                state.stopping = False

    def _fetch(self, node: Node, clean: bool) -> Exception | None:
        try:
            self._stop(node)
            for rank in self._ranks(node.rank):
                body = self.workers.get(rank)
                if not clean:
                    for stream in self._logs(rank) if body is None else self._logs_missing(rank):
                        self._sweep(node, rank, stream)
                partial = self._partial(rank)
                if body is None or (partial is not None and not partial.whole):
                    size = None if partial is None else partial.size
                    node.get(f"r{rank}.{RESULT}", self.paths.result(self.attempt, rank), size)
            if not clean:
                kept = self.paths.agent_log(self.attempt, node.rank)
                node.get_log("agent.log", kept, redact.of_file(self.paths.secrets))
        except (NodeUnreachable, ConnectionError, TimeoutError):
            raise
        except (ProviderError, OSError) as error:
            return error
        return None

    def _sweep(self, node: Node, rank: int, stream: str) -> None:
        with suppress(FileNotFoundError):
            offset = self.collector.size(rank, stream)
            blocks = node.read(f"r{rank}.{stream}", offset)
            size = (self._sizes(rank) or {}).get(stream)
            self.collector.add_all(rank, node.rank, stream, offset, blocks, size)

    # What is missing

    def _ranks(self, node: int) -> range:
        first = global_rank(node, self.workers_per_node, 0)
        return range(first, first + self.workers_per_node)

    def _logs(self, rank: int) -> tuple[str, ...]:
        return logs_of(rank, self.workers_per_node)

    def _sizes(self, rank: int) -> dict[str, int] | None:
        body = self.workers.get(rank)
        return None if body is None else dict(body.get("sizes") or {})

    def _logs_missing(self, rank: int) -> list[str]:
        return self.collector.missing(rank, self._sizes(rank) or {})

    def _partial(self, rank: int) -> Partial | None:
        """Returns the partly fetched result of a rank, or None if the rank is not known to have left a result."""
        size = (self._sizes(rank) or {}).get(RESULT)
        return Partial(self.paths.result(self.attempt, rank), size) if size else None

    def _files(self, node: int) -> list[tuple[str, int | None]]:
        """Returns the files of a node that were not fetched yet."""
        found: list[tuple[str, int | None]] = []
        for rank in self._ranks(node):
            sizes = self._sizes(rank)
            if sizes is None:
                if self.began and not self._states[node].swept:
                    found += [(f"r{rank}.{name}", None) for name in (*self._logs(rank), RESULT)]
                continue
            found += [(f"r{rank}.{stream}", sizes[stream]) for stream in self._logs_missing(rank)]
            partial = self._partial(rank)
            if partial is not None and not partial.whole:
                found.append((f"r{rank}.{RESULT}", partial.size))
        return found

    def _outlook(
        self, nodes: Sequence[Node], ended_well: bool, waited: float, given_up: bool
    ) -> MissingFilesDecision:
        found = []
        for node in nodes:
            state, files = self._states[node.rank], self._files(node.rank)
            # The node was read to its end, so a file that it did not have exists nowhere.
            gone = state.place is HoldingPlace.GONE or state.swept
            place = HoldingPlace.GONE if gone and files else state.place
            found.append(MissingOnNode(node.rank, tuple(files), place, state.trouble, state.ours))
        return unfetched.outlook(found, ended_well=ended_well, waited=waited, given_up=given_up)

    # Texts

    def what_is_lacking(self, nodes: Sequence[Node], lacking: Sequence[MissingOnNode]) -> str:
        """Returns a text like `results (40 MB) of node 2 (i-0abc) are not here: it has not answered since 14:02:11`."""
        told = []
        for holding in lacking[:3]:
            name, trouble = nodes[holding.node].name, holding.trouble
            if holding.place is HoldingPlace.GONE:
                why = f"lost: {trouble}" if trouble else "lost: they are not on the node any more"
            elif holding.place is HoldingPlace.SILENT:
                why = f"not here: it has not answered since {self._since(holding.node)}"
            else:
                why = f"not here: {trouble}" if trouble else "not here yet"
            told.append(f"{what(holding)} of {name} are {why}")
        more = len(lacking) - len(told)
        return "; ".join(told) + (f"; and those of {more} more nodes" if more else "")

    def _since(self, node: int) -> str:
        return time.strftime("%H:%M:%S", time.localtime(self._states[node].since))

    def _waiting(self, nodes: Sequence[Node], seen: MissingFilesDecision, waited: float) -> str:
        told = []
        for holding in seen.waits_for[:3]:
            state, name = self._states[holding.node], nodes[holding.node].name
            if state.since:
                why = f", which has not answered since {self._since(holding.node)}"
            else:
                why = f": {holding.trouble}" if holding.trouble else ""
            told.append(f"{what(holding)} of {name}{why}")
        more = len(seen.waits_for) - len(told)
        text = "; ".join(told) + (f"; and {more} more nodes" if more else "")
        if not any(self._states[each.node].since or each.trouble for each in seen.waits_for):
            return text
        # In minutes, so that the text does not change all the time.
        left = max(1, round((unfetched.PATIENCE - waited) / 60))
        return f"{text}; for {left} min more at most"


def what(holding: MissingOnNode) -> str:
    """Returns `results (40 MB)`, `logs`, or `logs and results (3 GB)`."""
    results = [size for name, size in holding.files if name.endswith(f".{RESULT}")]
    logs = len(holding.files) > len(results)
    total = sum(size for size in results if size)
    told = f"results ({human_size(total)})" if total else "results"
    return " and ".join([*(["logs"] if logs else []), *([told] if results else [])])


class _Patience:
    """How long missing files have been waited for.

    Attributes:
        waited: Seconds in which something answered, and next to nothing came.
    """

    def __init__(self) -> None:
        self._looked = self._counted_at = time.monotonic()
        self._counted = 0
        self._hurries_until = 0.0
        self.waited = 0.0

    @property
    def lasts(self) -> bool:
        """Whether files are still waited for that are coming, so it seems."""
        return self.waited < unfetched.PATIENCE

    def pass_time(self, count: Callable[[], int], *, cut_off: bool) -> None:
        """Adds the time since the last call, unless nothing answered from this machine meanwhile, or files come.

        Args:
            count: Returns how many bytes are here.
            cut_off: Whether nothing answers.
        """
        now = time.monotonic()
        self.waited += 0.0 if cut_off else now - self._looked
        self._looked = now
        if now >= self._counted_at + KEEP_EVERY:
            self._counted_at, here = now, count()
            if here >= self._counted + _PROGRESS:
                self._counted, self.waited = here, 0.0

    def hurries(self, *, stopping: bool) -> bool:
        """Whether data already on its way, once waiting was given up, has had its time to arrive.

        Args:
            stopping: Whether a node still stops its workers. The time begins when it has.
        """
        if stopping or not self._hurries_until:
            self._hurries_until = time.monotonic() + _MOMENT
        return time.monotonic() > self._hurries_until


async def _any_of(tasks: Collection[asyncio.Task[None]], given_up: asyncio.Event) -> None:
    """Waits until a task is done, waiting is given up, or it is time to look again."""
    if given_up.is_set():
        await asyncio.wait(tasks, timeout=_MOMENT / 20) if tasks else await asyncio.sleep(0)
        return
    await wait_until(given_up, *tasks, seconds=KEEP_EVERY)


def _is_ours(problem: Exception | None) -> bool:
    """Whether the disk of this machine is the cause."""
    return isinstance(problem, OSError) and problem.errno in _OUR_DISK
