"""Whether a node is gone, slow, or only out of our own reach: one decision, without any effect.

A node is lost only if two sources say so. One is its own machine, or the provider, asked through its connection. The
other is the gang: the leader's word on a member, the members' word on the leader. Where nobody can be asked, because
the node is alone or the others do not answer either, something else that does answer from here must show that it is
not our own network that is gone.

    asked itself                     the gang says   something else answers   verdict
    its agent runs                   anything        -                        wait
    its agent runs, but hangs        it is silent    -                        lost, once the others have stopped
    its agent is gone, or not listed anything        -                        lost
    no answer, not often enough yet  anything        -                        wait
    no answer                        it is heard     -                        wait: only our way there is broken
    no answer                        anything else   no                       cut off: it may be us
    no answer                        anything else   yes, but not for long    wait
    no answer, for `PATIENCE`        anything else   yes, for as long         lost, if it does not answer now either

The last line is the only one in which silence alone ends a node, so the node is asked once more, over a connection that
is made for it, at the moment of the decision (`Reach`): a connection that was made before an outage recovers some
seconds later than the network.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flowlite.node.config import fencing

UNANSWERED = 3
"""So many probes in a row must have gone unanswered, ..."""
PATIENCE = 25.0
"""... for so many seconds, whatever the node and the phase. An outage of 20 s costs nothing: TCP and SSH take up to 5 s
to recover after it. It is shorter than `fencing.FENCE_AFTER`, so that the supervisor decides before the gang does."""
TELL_AFTER = 5.0
"""That nothing answers from here is told after so many seconds; nothing else follows from it."""
HANGS = fencing.FENCE_AFTER + 15.0
"""A leader that has said nothing to anybody for so long has no gang any more: the others have stopped by themselves."""


class Life(StrEnum):
    """What a node, or its provider, answered when it was asked."""

    ALIVE = "alive"
    ABSENT = "absent"
    DEAD = "dead"
    GONE = "gone"
    UNREACHABLE = "unreachable"


class Word(StrEnum):
    """What the others of the gang say of a node."""

    HEARD = "heard"
    SILENT = "silent"
    NONE = "none"


class Verdict(StrEnum):
    """What follows."""

    WAIT = "wait"
    LOST = "lost"
    CUT_OFF = "cut off"


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of a node that is in doubt.

    Attributes:
        life: The latest answer.
        unanswered: Probes in a row that nobody answered.
        silent_for: Seconds since the first of these.
        word: What the gang says.
        witness: Whether something else answers us now.
        proven: Of the probes, how many went unanswered while something else did answer, since that has been so.
        proven_for: Seconds since the first of these.
        speechless_for: Seconds for which the leader has said nothing to us, though it may run.
    """

    life: Life
    unanswered: int = 0
    silent_for: float = 0.0
    word: Word = Word.NONE
    witness: bool = False
    proven: int = 0
    proven_for: float = 0.0
    speechless_for: float = 0.0


def judge(sight: Sight) -> Verdict:
    """What follows from what is known of a node."""
    if sight.life is Life.ALIVE:
        hangs = sight.word is Word.SILENT and sight.speechless_for >= HANGS
        return Verdict.LOST if hangs else Verdict.WAIT
    if sight.life is not Life.UNREACHABLE:
        return Verdict.LOST
    if sight.unanswered < UNANSWERED or sight.silent_for < TELL_AFTER:
        return Verdict.WAIT
    if sight.word is Word.HEARD:
        return Verdict.WAIT
    if not sight.witness:
        return Verdict.CUT_OFF
    enough = sight.proven >= UNANSWERED and sight.proven_for >= PATIENCE
    return Verdict.LOST if enough else Verdict.WAIT
