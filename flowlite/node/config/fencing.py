"""When workers of a node that nobody can reach are certain to have stopped: the times that both ends count on.

The node stops its workers by itself once its leader has been silent for `fence_after`, and kills what is left after
`grace`. Whoever wants to start others in their place waits for longer than that, from a later moment: from when the
node was given up. So no rank runs twice, though the two ends cannot speak to each other.

    node:        last word ──── fence_after ────> stop signal ── grace ──> SIGKILL
    supervisor:        ... given up ──── fence_after + grace + SLACK ────────────────> replacement starts

Both count on their own steady clocks; `SLACK` is for how finely they tick, for the kernel to carry out a SIGKILL, and
for clocks that run unequally. A word that the leader sent before it gave the node up and that comes later is followed
by its order to stop, in the same stream.
"""

from __future__ import annotations

FENCE_AFTER = 30.0
"""Silence of the leader after which a node stops its own workers."""

SUPERVISED = 1.5
"""A leader whose supervisor is on the line waits so many times `FENCE_AFTER` until it gives up a silent node itself."""

SLACK = 5.0


def grace_left(silence: float, fence_after: float, grace: float) -> float:
    """How long workers may still take to end on a node that has heard nothing for so long."""
    return max(0.0, min(grace, fence_after + grace - silence))


def stopped_by(last_word: float, fence_after: float, grace: float) -> float:
    """When the last worker of a node has got its SIGKILL that heard its leader for the last time then."""
    return last_word + fence_after + grace


def replaced_from(given_up: float, fence_after: float, grace: float) -> float:
    """When others may start in the place of a node that was given up then."""
    return given_up + fence_after + grace + SLACK
