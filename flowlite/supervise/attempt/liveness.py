"""Watching over a gang that is being followed: nodes that the leader misses, that never join, and the leader itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowlite.node.protocol import messages
from flowlite.node.rendezvous.supervisor_client import SupervisorClient
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import Life, Verdict
from flowlite.supervise.attempt.reachability import OUT_OF_REACH, PROBE_EVERY, Reachability

# The leader is looked at this long after its line went dead, or after it has said nothing for so long.
PROBE_AFTER = 0.25
SILENCE = 3.5
# A node that answers but is missed by the leader is looked at again at this pace.
LOOK_EVERY = 2.0
# Nodes that have not joined are looked at from then on; a started agent has so long to say that it runs.
_JOIN_SECONDS = 4.0
_START_SECONDS = 30.0
# Of those, so many at a time: where hundreds are missing, a few tell why.
_MOST_LOOKS = 16


class LivenessWatch:
    """Looks after the nodes of one attempt.

    Attributes:
        replace: Instances that must not be used again, with why.
        vanishing: Instances that will be taken away soon; they answer still.
    """

    def __init__(self, nodes: Sequence[Node], reach: Reachability) -> None:
        self._nodes = nodes
        self._reach = reach
        self._joined: set[int] = set()
        # Why the leader misses them, by instance; and who looks after each of them, while the leader is followed.
        self._suspects: dict[str, str] = {}
        self._confirming: dict[str, asyncio.Task[None]] = {}
        self.replace: dict[str, str] = {}
        self.vanishing: set[str] = set()

    def handle(self, link: SupervisorClient, event: Mapping[str, Any]) -> None:
        """Takes in an event of the gang."""
        kind = event["kind"]
        if kind == "joined":
            self._joined.add(int(event["rank"]))
            self._reach.heard(self._nodes[int(event["rank"])])
        elif kind == "preempting":
            self.vanishing.add(str(event["instance"]))
        elif kind == "suspect":
            self._suspects.setdefault(event["instance"], str(event["why"]))
            self.follow(link)
        elif kind == "back":
            # A later silence is another one: what was counted of this one must not shorten its patience.
            self._reach.heard(self._node(event["instance"]))
            self._suspects.pop(event["instance"], None)
            if (task := self._confirming.pop(event["instance"], None)) is not None:
                task.cancel()

    def follow(self, link: SupervisorClient) -> None:
        """Looks after the nodes that the leader misses, by its word on this line, until `close`."""
        for instance in self._suspects.keys() - self._confirming.keys():
            confirming = self._confirm(link, instance, self._suspects[instance])
            self._confirming[instance] = asyncio.create_task(confirming)

    def close(self) -> None:
        """Looks no more: nobody follows the leader now, so it has no word on any node."""
        for task in self._confirming.values():
            task.cancel()
        self._confirming.clear()

    def note(self, node: Node, finding: Finding) -> None:
        """A node is lost; where its machine is gone or out of reach, it is not used again."""
        if finding.life in OUT_OF_REACH:
            self.replace[node.instance.id] = finding.why

    async def leader(self, link: SupervisorClient) -> Finding:
        """Returns, with what is known of it, once the leader is known to be gone."""
        node, quiet = self._nodes[0], False
        while True:
            await asyncio.sleep(PROBE_AFTER)
            if _is_heard(link):
                quiet = False
                self._reach.heard(node)
                continue
            if not quiet:
                quiet = True
                continue
            verdict, finding = await self._reach.judge_alone(node, link.silence)
            if _is_heard(link) or link.phase == messages.ENDED:
                continue
            if verdict is Verdict.LOST:
                self.note(node, finding)
                if finding.life is not Life.ALIVE:
                    return finding
                return replace(
                    finding, why=f"{finding.why}, but says nothing for {link.silence:.0f} s"
                )
            await asyncio.sleep(PROBE_EVERY if finding.life is Life.UNREACHABLE else PROBE_AFTER)

    async def joining(self, link: SupervisorClient) -> None:
        """Sees to it that nobody waits for a node that cannot join any more; returns when all have joined."""
        began = time.monotonic()
        await asyncio.sleep(_JOIN_SECONDS)
        while missing := self._missing():
            if _is_heard(link):
                looks = [self._look_after(link, n, began) for n in missing[:_MOST_LOOKS]]
                await asyncio.gather(*looks)
            await asyncio.sleep(PROBE_EVERY)

    def _missing(self) -> list[Node]:
        return [node for node in self._nodes[1:] if node.rank not in self._joined]

    async def _look_after(self, link: SupervisorClient, node: Node, began: float) -> None:
        verdict, finding = await self._reach.judge_member(node, leader_answers=_is_heard(link))
        early = finding.life is Life.ABSENT and time.monotonic() < began + _START_SECONDS
        if verdict is Verdict.LOST and not early and node in self._missing():
            self.note(node, finding)
            await link.stop("lost", f"{node.name} did not join: {finding.why}")

    async def _confirm(self, link: SupervisorClient, instance: str, why: str) -> None:
        """The second source: a node that the leader misses is looked at through its own connection."""
        node = self._node(instance)
        while True:
            verdict, finding = await self._reach.judge_member(node, leader_answers=_is_heard(link))
            if verdict is Verdict.LOST:
                self.note(node, finding)
                answers = finding.life not in OUT_OF_REACH
                await link.lost(instance, f"{why}; {finding.why}", answers=answers)
                return
            doubtful = finding.life is Life.UNREACHABLE
            await asyncio.sleep(PROBE_EVERY if doubtful else LOOK_EVERY)

    def _node(self, instance: str) -> Node:
        return next(each for each in self._nodes if each.instance.id == instance)


def _is_heard(link: SupervisorClient) -> bool:
    return link.attached and link.silence < SILENCE
