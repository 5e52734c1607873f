"""What is done next so that a gang grows while it runs (`grow="checkpoint"`).

A gang with fewer nodes than it may have asks for more while it runs. They are brought up beside it. When all that have
come are ready, and no more come soon, its workers are asked to stop, and the next attempt begins with all.
Pure: `process/growth.py` carries it out.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

GIVE_UP_SECONDS = 1800.0
"""How long the new nodes wait for the workers to stop, before they are given back."""
LEAST_SECONDS = 300.0
"""A gang that may run for less than this with more nodes does not grow: a new start would take most of it."""


class GrowthStep(enum.Enum):
    """What is done next.

    ASK has the workers asked to stop, ASK_NO_MORE takes that back, and GIVE_UP also gives the new nodes back.
    """

    WAIT = "wait"
    LAUNCH = "launch"
    ASK = "ask"
    ASK_NO_MORE = "ask no more"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class GrowthState:
    """A gang that runs, and the nodes beside it.

    Attributes:
        size: Nodes of the attempt.
        most: Nodes that it may have.
        joining: Nodes beside it.
        ready: How many of those are ready.
        stoppable: Whether its ranks run, and one of them calls `should_stop()` or listens for SIGUSR2.
        ending: Whether the attempt ends anyway, or its workers were told to stop.
        coming: Whether more nodes boot.
        settled: Seconds since the last node became ready.
        settle_seconds: How long it is waited for more than have come.
        asked_for: Seconds since the workers are asked to stop; None if they are not.
        seconds_left: How long the gang may run with one node more.
        may_launch: Whether it is time to ask for nodes, and nothing speaks against it.
    """

    size: int
    most: int
    joining: int
    ready: int
    stoppable: bool
    ending: bool
    coming: bool
    settled: float
    settle_seconds: float
    asked_for: float | None
    seconds_left: float
    may_launch: bool

    def next_step(self) -> GrowthStep:
        """What is done next."""
        if self.ending or not self.stoppable:
            return GrowthStep.WAIT
        if self.asked_for is not None:
            if not self.joining:
                return GrowthStep.ASK_NO_MORE
            return GrowthStep.GIVE_UP if self.asked_for >= GIVE_UP_SECONDS else GrowthStep.WAIT
        lacking = self.most - self.size - self.joining
        are_ready = self.joining and self.ready == self.joining and not self.coming
        if are_ready and (lacking <= 0 or self.settled >= self.settle_seconds):
            return GrowthStep.ASK
        worth_it = self.seconds_left >= LEAST_SECONDS
        return (
            GrowthStep.LAUNCH if lacking > 0 and self.may_launch and worth_it else GrowthStep.WAIT
        )
