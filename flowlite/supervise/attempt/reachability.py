"""Probes the nodes of an attempt and collects what `node_verdict.py` needs to decide about them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TypeVar

from flowlite.errors import HostKeyError, NodeUnreachable
from flowlite.node.quick_dataclass import dataclass
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import (
    HANGS,
    GangOpinion,
    NodeInDoubt,
    ProbeAnswer,
    Verdict,
    judge,
)
from flowlite.supervise.threads import Threads
from flowlite.supervise.waiting import wait_for_event, wait_until

# A longer probe counts as failed. Its answer still counts if it arrives while the node is in doubt.
PROBE_SECONDS = 2.0
# Pause between two probes of a node that is in doubt.
PROBE_EVERY = 0.5
# A node is probed when a call on it takes longer than this.
_LOOK_AFTER = 3.0
# Other nodes are asked only if a node does not answer within this time.
_AT_ONCE = 0.3
# Timeout of the last probe before a node is given up, which may have to connect first.
LAST_LOOK_SECONDS = 5.0
# So many bytes that come from a node during a probe are a sign of life: logs or results that fill the network, behind
# which the answer waits. A host that runs no commands may still begin to answer, which is less.
_SENDS = 4096
# How many other nodes are asked, which is enough for both sources.
_ASKED = 8


Value = TypeVar("Value")
OUT_OF_REACH = (ProbeAnswer.UNREACHABLE, ProbeAnswer.GONE)


class NodeLost(Exception):
    """A node was lost during a call on it. Carries the last finding. The text is for people."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.why)
        self.finding = finding


class GivenUp(Exception):
    """The call is not needed any more."""


@dataclass(slots=True)
class _Seen:
    """What is known about one node.

    Attributes:
        began: When the latest look began.
        unanswered: Failed probes in a row.
        since: When the first of these began.
        proven: Failed probes in a row during which something else answered.
        proven_since: When the first of these began.
        asking: The latest probe, until its answer was used. A node has at most one probe at a time.
        asked: When that probe began.
        why: Why the node did not answer, for people.
        gone: Whether the provider does not list it any more.
    """

    began: float = 0.0
    unanswered: int = 0
    since: float = 0.0
    proven: int = 0
    proven_since: float = 0.0
    asking: asyncio.Future[Finding] | None = None
    asked: float = 0.0
    why: str = "it does not answer"
    gone: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Reachability:
    """Which nodes of one attempt answer.

    Attributes:
        cut_off_since: Unix time since which nothing answers at all, so that our own network is probably down; else
            None.
        refusal: Why a node that answers does not let us in, as far as that is known; "" while we are not cut off.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        threads: Threads,
        elsewhere: Callable[[], str],
        tell: Callable[[float | None], None],
    ) -> None:
        """
        Args:
            elsewhere: Returns the name of something else of the provider that answers now, or "" if nothing does.
                Blocks.
            tell: Called with `cut_off_since` when that or `refusal` changes.
        """
        self._nodes = nodes
        self._threads = threads
        self._elsewhere = elsewhere
        self._tell = tell
        self._seen = {node.instance.id: _Seen() for node in nodes}
        self._asking_elsewhere: asyncio.Future[str] | None = None
        self.cut_off_since: float | None = None
        self.refusal = ""

    @property
    def out_of_reach(self) -> set[str]:
        """Instances that did not answer the last probe."""
        return {instance for instance, seen in self._seen.items() if seen.unanswered}

    @property
    def in_doubt(self) -> bool:
        """Whether an instance did not answer the last probe, or is known to be gone."""
        return any(seen.unanswered or seen.gone for seen in self._seen.values())

    def heard(self, node: Node) -> None:
        """Notes that a node answered, or was reported alive by another node."""
        seen = self._seen[node.instance.id]
        seen.unanswered = seen.proven = 0
        self._set_cut_off(None)

    async def persist(
        self,
        node: Node,
        do: Callable[[Node], Value],
        given_up: asyncio.Event,
        *,
        changes: bool = True,
    ) -> Value:
        """Calls a function for a node in a thread, and retries while the node does not answer but is not lost.

        Args:
            do: The function. Blocks.
            given_up: Set when the call is not needed any more.
            changes: Whether the call changes something on the node. Such a call is not abandoned while it runs, so
                that nothing is written to a node that was given back meanwhile.

        Raises:
            Lost: The node is lost, or the provider does not list it any more.
            GivenUp: The call is not needed any more, and did not finish at once or the node does not answer.
            Exception: Raised by `do`, unless it says that the node does not answer.
        """
        doing: asyncio.Future[Value] | None = None
        begun = threading.Event()

        def call() -> Value:
            begun.set()
            return do(node)

        while True:
            if doing is None:
                begun.clear()
                doing = asyncio.ensure_future(self._threads.run(call))
            await self._wait_for(doing, given_up)
            if not (doing.done() or begun.is_set() or given_up.is_set()):
                # It waits for a thread, which says nothing about the node.
                continue
            if doing.done():
                try:
                    value = doing.result()
                    self.heard(node)
                    return value
                except HostKeyError:
                    raise
                except (NodeUnreachable, ConnectionError, TimeoutError):
                    doing = None
            if given_up.is_set() and (doing is None or not changes):
                raise GivenUp
            verdict, finding = await self.judge_alone(node)
            if verdict is Verdict.LOST and finding.life in OUT_OF_REACH:
                raise NodeLost(finding)
            if given_up.is_set() and finding.life is ProbeAnswer.UNREACHABLE:
                raise GivenUp
            if doing is None:
                await wait_for_event(given_up, PROBE_EVERY)

    @staticmethod
    async def _wait_for(doing: asyncio.Future[Value], given_up: asyncio.Event) -> None:
        """Waits until the call is done or the node should be probed. Waits only briefly once the call is given up."""
        await wait_until(given_up, doing, seconds=_LOOK_AFTER)
        if given_up.is_set() and not doing.done():
            await asyncio.wait({doing}, timeout=_AT_ONCE)

    async def look(self, node: Node) -> Finding:
        """Probes a node. Takes `PROBE_SECONDS` at most.

        A node that sends data is not silent, also if it does not answer in time.

        The answer of an earlier probe counts only if the node has been in doubt since that probe began. A look may be
        cancelled before its answer arrives, and that answer may be outdated.
        """
        seen = self._seen[node.instance.id]
        async with seen.lock:
            seen.began = time.monotonic()
            doubted_since = seen.since if seen.unanswered else seen.began
            before = node.received()
            finding = await self._answer(node, doubted_since, seen.began + PROBE_SECONDS)
            if finding is None:
                finding = Finding(ProbeAnswer.UNREACHABLE, seen.why)
            seen.gone = finding.life is ProbeAnswer.GONE
            if finding.life is ProbeAnswer.UNREACHABLE and node.received() - before >= _SENDS:
                self.heard(node)
            elif finding.life is ProbeAnswer.UNREACHABLE:
                seen.why = finding.why or seen.why
                seen.since = seen.since if seen.unanswered else seen.began
                seen.unanswered += 1
            elif finding.life is not ProbeAnswer.GONE:
                self.heard(node)
            return finding

    async def _answer(self, node: Node, since: float, until: float) -> Finding | None:
        """Returns the answer of a probe that began at `since` or later, or None if none arrives in time."""
        seen = self._seen[node.instance.id]
        while True:
            if seen.asking is None:
                seen.asking = asyncio.ensure_future(self._threads.look(node.probe))
                seen.asked = time.monotonic()
            await asyncio.wait({seen.asking}, timeout=max(0.0, until - time.monotonic()))
            if not seen.asking.done():
                return None
            answered, seen.asking = seen.asking, None
            if seen.asked >= since:
                return answered.result()

    async def judge_member(self, node: Node, *, leader_answers: bool) -> tuple[Verdict, Finding]:
        """Decides whether a node that the leader misses is lost.

        Args:
            leader_answers: Whether the leader is connected. If not, it may not miss the node any more.
        """
        finding = await self.look(node)
        # While the leader is silent, the watch over the leader finds out whether anything else answers.
        word, witness = (GangOpinion.SILENT, True) if leader_answers else (GangOpinion.NONE, None)
        verdict = judge(self._sight(node, finding, word, witness))
        verdict, finding = await self._look_once_more(node, verdict, finding)
        # Without the leader, the state of the leader has to be found out first.
        return (
            verdict if leader_answers or verdict is not Verdict.CUT_OFF else Verdict.WAIT
        ), finding

    async def judge_alone(self, node: Node, speechless_for: float = 0.0) -> tuple[Verdict, Finding]:
        """Decides whether a node that does not answer us is lost. Other nodes are asked about the leader.

        Args:
            speechless_for: As in `NodeInDoubt`.
        """
        seen = self._seen[node.instance.id]
        doubted = seen.unanswered > 0 or speechless_for >= HANGS
        asking = asyncio.create_task(self._ask_others(node, 0.0 if doubted else _AT_ONCE))
        finding = await self.look(node)
        word = GangOpinion.NONE
        witness: bool | None = None
        if finding.life is ProbeAnswer.UNREACHABLE or (
            doubted and finding.life is ProbeAnswer.ALIVE
        ):
            word, witness = await asking
        else:
            asking.cancel()
        verdict = judge(self._sight(node, finding, word, witness, speechless_for))
        verdict, finding = await self._look_once_more(node, verdict, finding)
        if verdict is Verdict.CUT_OFF:
            silent = time.monotonic() - self._seen[node.instance.id].since
            # One that hangs after a refusal has said why.
            refusal = finding.why if finding.refused else self.refusal
            self._set_cut_off(self.cut_off_since or time.time() - silent, refusal)
        return verdict, finding

    async def _look_once_more(
        self, node: Node, verdict: Verdict, finding: Finding
    ) -> tuple[Verdict, Finding]:
        """Probes a node over a new connection before it is given up for its silence."""
        if verdict is not Verdict.LOST or finding.life is not ProbeAnswer.UNREACHABLE:
            return verdict, finding
        looking = asyncio.ensure_future(self._threads.look(node.probe_afresh))
        await asyncio.wait({looking}, timeout=LAST_LOOK_SECONDS)
        if not looking.done() or (latest := looking.result()).life is ProbeAnswer.UNREACHABLE:
            return verdict, finding
        if latest.life is not ProbeAnswer.GONE:
            self.heard(node)
        # The node answers, so its answer alone decides.
        return judge(NodeInDoubt(latest.life)), latest

    def _sight(
        self,
        node: Node,
        finding: Finding,
        word: GangOpinion,
        witness: bool | None,
        speechless: float = 0.0,
    ) -> NodeInDoubt:
        """Returns what is known about a node after a probe. `witness` is None if nothing else was asked."""
        seen, now = self._seen[node.instance.id], time.monotonic()
        if seen.unanswered and witness:
            seen.proven_since = seen.proven_since if seen.proven else seen.began
            seen.proven += 1
        elif seen.unanswered and witness is False:
            # Nothing answered, so nodes that were silent during that time may only have been unreachable from here.
            for each in self._seen.values():
                each.proven = 0
        return NodeInDoubt(
            finding.life,
            seen.unanswered,
            now - seen.since if seen.unanswered else 0.0,
            word,
            bool(witness),
            seen.proven,
            now - seen.proven_since if seen.proven else 0.0,
            speechless,
        )

    async def _ask_others(self, node: Node, after: float) -> tuple[GangOpinion, bool]:
        """Returns what other nodes say about this one, and whether anything answers at all."""
        await asyncio.sleep(after)
        others = [each for each in self._nodes if each is not node][:_ASKED]
        findings = await asyncio.gather(*(self.look(each) for each in others))
        answered = [
            f for f in findings if f.life not in (ProbeAnswer.UNREACHABLE, ProbeAnswer.GONE)
        ]
        hears = {f.hears_leader for f in answered if f.life is ProbeAnswer.ALIVE}
        # Members that waited for the leader in vain have stopped, and their agents may have exited.
        hears |= {False for f in answered if f.life is ProbeAnswer.DEAD and not f.hears_leader}
        word = (
            GangOpinion.HEARD
            if True in hears
            else GangOpinion.SILENT
            if hears
            else GangOpinion.NONE
        )
        if node.rank != 0:
            word = GangOpinion.NONE
        return word, bool(answered) or bool(await self._ask_elsewhere())

    async def _ask_elsewhere(self) -> str:
        if self._asking_elsewhere is not None and self._asking_elsewhere.done():
            # The answer arrived after its caller stopped waiting, so it may be outdated.
            self._asking_elsewhere = None
        asking = self._asking_elsewhere
        if asking is None:
            asking = self._asking_elsewhere = asyncio.ensure_future(
                self._threads.look(self._elsewhere)
            )
        await asyncio.wait({asking}, timeout=PROBE_SECONDS)
        if not asking.done():
            return ""
        if self._asking_elsewhere is asking:
            self._asking_elsewhere = None
        return "" if asking.exception() else asking.result()

    def _set_cut_off(self, since: float | None, refusal: str = "") -> None:
        if (since, refusal) != (self.cut_off_since, self.refusal):
            self.cut_off_since, self.refusal = since, refusal
            self._tell(since)
