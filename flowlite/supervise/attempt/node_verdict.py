"""Decides whether a node is gone, slow, or only unreachable from here. Pure: no effects.

A node is lost only if two sources say so. The first is its own machine or the provider, asked through its connection.
The second is the gang: the leader reports on members, the members on the leader. If neither can be asked, because the
node is alone or the others do not answer either, something else must answer from here, to show that our own network is
not down.

    the node itself                  the gang says   something else answers   verdict
    its agent runs                   anything        -                        wait
    its agent runs, but hangs        it is silent    -                        lost, once the others have stopped
    its agent is gone, or not listed anything        -                        lost
    no answer, not often enough yet  anything        -                        wait
    no answer, but it sends data     anything        -                        wait: a slow network is full of that
    no answer                        it is heard     -                        wait: only our way there is broken
    no answer                        anything else   no                       cut off: it may be our network
    no answer                        anything else   yes, but not for long    wait
    no answer, for `PATIENCE`        anything else   yes, for as long         lost, if the last probe fails too

Only in the last row does silence alone end a node. Before that decision the node is probed once more over a new
connection (`Reachability`), since a connection made before an outage recovers some seconds later than the network.
"""

from __future__ import annotations

from enum import StrEnum

from flowlite.node.config import fencing
from flowlite.node.quick_dataclass import dataclass

UNANSWERED = 3
"""How many probes in a row must have failed before a node can be lost."""
PATIENCE = 25.0
"""Seconds for which probes must have failed, whatever the node and the phase.

An outage of 20 s costs nothing: TCP and SSH take up to 5 s to recover after it. The time is shorter than
`fencing.FENCE_AFTER`, so that the supervisor decides before the gang does.
"""
TELL_AFTER = 5.0
"""Seconds after which it is reported that nothing answers from here. Nothing else follows from it."""
HANGS = fencing.FENCE_AFTER + 15.0
"""Seconds of silence after which a leader has no gang any more, since the other nodes have stopped by themselves."""


class ProbeAnswer(StrEnum):
    """What a node, or its provider, answered to a probe."""

    ALIVE = "alive"
    ABSENT = "absent"
    DEAD = "dead"
    GONE = "gone"
    UNREACHABLE = "unreachable"


class GangOpinion(StrEnum):
    """What the other nodes of the gang say about a node."""

    HEARD = "heard"
    SILENT = "silent"
    NONE = "none"


class Verdict(StrEnum):
    """The decision about a node."""

    WAIT = "wait"
    LOST = "lost"
    CUT_OFF = "cut off"


@dataclass(frozen=True, slots=True)
class NodeInDoubt:
    """What is known about a node in doubt.

    Attributes:
        life: The latest answer.
        unanswered: Failed probes in a row.
        silent_for: Seconds since the first of these.
        word: What the gang says.
        witness: Whether something else answers us now.
        proven: Failed probes in a row during which something else did answer.
        proven_for: Seconds since the first of these.
        speechless_for: Seconds for which the leader has sent us nothing, though it may run.
    """

    life: ProbeAnswer
    unanswered: int = 0
    silent_for: float = 0.0
    word: GangOpinion = GangOpinion.NONE
    witness: bool = False
    proven: int = 0
    proven_for: float = 0.0
    speechless_for: float = 0.0


def judge(sight: NodeInDoubt) -> Verdict:
    """Returns the decision about a node from what is known about it."""
    if sight.life is ProbeAnswer.ALIVE:
        hangs = sight.word is GangOpinion.SILENT and sight.speechless_for >= HANGS
        return Verdict.LOST if hangs else Verdict.WAIT
    if sight.life is not ProbeAnswer.UNREACHABLE:
        return Verdict.LOST
    if sight.unanswered < UNANSWERED or sight.silent_for < TELL_AFTER:
        return Verdict.WAIT
    if sight.word is GangOpinion.HEARD:
        return Verdict.WAIT
    if not sight.witness:
        return Verdict.CUT_OFF
    enough = sight.proven >= UNANSWERED and sight.proven_for >= PATIENCE
    return Verdict.LOST if enough else Verdict.WAIT
