"""Watches the nodes of a gang that is followed: nodes that the leader misses, nodes that never join, and the leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowlite.node.protocol import messages
from flowlite.node.rendezvous.supervisor_client import SupervisorClient
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer, Verdict
from flowlite.supervise.attempt.reachability import OUT_OF_REACH, PROBE_EVERY, Reachability

# The leader is probed this long after its connection broke, or after it has been silent for `SILENCE` seconds.
PROBE_AFTER = 0.25
SILENCE = 3.5
# Pause between two probes of a node that answers but is missed by the leader.
LOOK_EVERY = 2.0
# Nodes that have not joined are probed after `_JOIN_SECONDS`. A started agent has `_START_SECONDS` to report itself.
_JOIN_SECONDS = 4.0
_START_SECONDS = 30.0
# How many missing nodes are probed at a time. If hundreds are missing, a few are enough to find out why.
_MOST_LOOKS = 16


class LivenessWatch:
    """Watches the nodes of one attempt.

    Attributes:
        replace: Instances that must not be used again, with the reason.
        vanishing: Instances that will be taken away soon but still answer.
        sick: Instances whose machines are broken but still answer, with what is wrong.
    """

    def __init__(self, nodes: Sequence[Node], reach: Reachability) -> None:
        self._nodes = nodes
        self._reach = reach
        self._joined: set[int] = set()
        # By instance: why the leader misses it, and the task that probes it while the leader is followed.
        self._suspects: dict[str, str] = {}
        self._confirming: dict[str, asyncio.Task[None]] = {}
        self.replace: dict[str, str] = {}
        self.vanishing: set[str] = set()
        self.sick: dict[str, str] = {}

    def handle(self, link: SupervisorClient, event: Mapping[str, Any]) -> None:
        """Handles an event of the gang."""
        kind = event["kind"]
        if kind == "joined":
            self._joined.add(int(event["rank"]))
            self._reach.heard(self._nodes[int(event["rank"])])
        elif kind == "preempting":
            self.vanishing.add(str(event["instance"]))
        elif kind == "sick" and "instance" in event:
            self.sick[str(event["instance"])] = str(event["text"])
        elif kind == "suspect":
            self._suspects.setdefault(event["instance"], str(event["why"]))
            self.follow(link)
        elif kind == "back":
            # A later silence starts anew: counts of this one must not shorten its patience.
            self._reach.heard(self._node(event["instance"]))
            self._suspects.pop(event["instance"], None)
            if (task := self._confirming.pop(event["instance"], None)) is not None:
                task.cancel()

    def follow(self, link: SupervisorClient) -> None:
        """Probes the nodes that the leader misses until `close`, and tells the leader through this client."""
        for instance in self._suspects.keys() - self._confirming.keys():
            confirming = self._confirm(link, instance, self._suspects[instance])
            self._confirming[instance] = asyncio.create_task(confirming)

    def close(self) -> None:
        """Stops probing. The leader is not followed any more, so it cannot say which nodes it misses."""
        for task in self._confirming.values():
            task.cancel()
        self._confirming.clear()

    def note(self, node: Node, finding: Finding) -> None:
        """Notes that a node is lost. If its machine is gone or unreachable, it is not used again."""
        if finding.life in OUT_OF_REACH:
            self.replace[node.instance.id] = finding.why

    async def leader(self, link: SupervisorClient) -> Finding:
        """Returns the last finding about the leader once it is known to be gone."""
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
                if finding.life is not ProbeAnswer.ALIVE:
                    return finding
                return replace(
                    finding, why=f"{finding.why}, but says nothing for {link.silence:.0f} s"
                )
            await asyncio.sleep(
                PROBE_EVERY if finding.life is ProbeAnswer.UNREACHABLE else PROBE_AFTER
            )

    async def joining(self, link: SupervisorClient) -> None:
        """Stops the gang if a node cannot join any more. Returns when all have joined."""
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
        early = finding.life is ProbeAnswer.ABSENT and time.monotonic() < began + _START_SECONDS
        if verdict is Verdict.LOST and not early and node in self._missing():
            self.note(node, finding)
            await link.stop("lost", f"{node.name} did not join: {finding.why}")

    async def _confirm(self, link: SupervisorClient, instance: str, why: str) -> None:
        """Probes a node that the leader misses through its own connection, which is the second source for its loss."""
        node = self._node(instance)
        while True:
            verdict, finding = await self._reach.judge_member(node, leader_answers=_is_heard(link))
            if verdict is Verdict.LOST:
                self.note(node, finding)
                answers = finding.life not in OUT_OF_REACH
                await link.lost(instance, f"{why}; {finding.why}", answers=answers)
                return
            doubtful = finding.life is ProbeAnswer.UNREACHABLE
            await asyncio.sleep(PROBE_EVERY if doubtful else LOOK_EVERY)

    def _node(self, instance: str) -> Node:
        return next(each for each in self._nodes if each.instance.id == instance)


def _is_heard(link: SupervisorClient) -> bool:
    return link.attached and link.silence < SILENCE
