"""Fencing: when the workers of an unreachable node are certain to have stopped.

The node stops its workers by itself once its leader has been silent for `fence_after` seconds, and kills those that are
left after `grace` seconds. The supervisor starts replacements only after a longer time, which counts from a later
moment: when the node was given up. So no rank runs twice, although the two sides cannot communicate.

    node:        last message ──── fence_after ────> stop signal ── grace ──> SIGKILL
    supervisor:           ... given up ──── fence_after + grace + SLACK ────────────────> replacement starts

Both sides use their own monotonic clocks. `SLACK` covers the interval between ticks, the time that the kernel takes to
carry out a SIGKILL, and clocks that run at different rates. If a message that the leader sent before it gave up the
node arrives late, the order to stop follows it in the same stream.
"""

from __future__ import annotations

FENCE_AFTER = 30.0
"""Seconds of silence of the leader after which a node stops its own workers."""

SUPERVISED = 1.5
"""With a supervisor attached, the leader itself gives up a silent node only after this many times `fence_after`."""

SLACK = 5.0


def grace_left(silence: float, fence_after: float, grace: float) -> float:
    """Returns how many seconds of the grace period are left on a node whose leader was silent for `silence` seconds."""
    return max(0.0, min(grace, fence_after + grace - silence))


def replaced_from(given_up: float, fence_after: float, grace: float) -> float:
    """Returns when replacements may start, given the time when the node was given up."""
    return given_up + fence_after + grace + SLACK
