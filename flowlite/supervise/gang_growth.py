"""What is done next so that a gang grows while it runs (`grow="checkpoint"`).

A gang with fewer nodes than it may have asks for more while it runs. They are brought up beside it. When all that have
come are ready, and no more come soon, its workers are asked to stop, and the next attempt begins with all.
Pure: `process/growth.py` carries it out.
"""

from __future__ import annotations

import enum

from flowlite.node.quick_dataclass import dataclass

GIVE_UP_SECONDS = 1800.0
"""How long the new nodes wait for the workers to stop, before they are given back."""
LEAST_SECONDS = 300.0
"""A gang that may run for less than this with more nodes does not grow: a new start would take most of it."""


class GrowthStep(enum.Enum):
    """What is done next.

    LAUNCH asks for nodes, or goes on with a launch that is open, and WITHDRAW ends that launch. ASK has the workers
    asked to stop, ASK_NO_MORE takes that back, and GIVE_UP also gives the new nodes back.
    """

    WAIT = "wait"
    LAUNCH = "launch"
    WITHDRAW = "withdraw"
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
        leaving: Whether a node that was given up is still there. The next attempt could not begin before it has gone.
        stoppable: Whether its ranks run, and one of them calls `should_stop()` or listens for SIGUSR2.
        told: Whether its workers were told to stop. They may take their time, or go on nevertheless.
        ending: Whether the attempt ends anyway.
        is_open: Whether a launch of more nodes is open, which may still bring some.
        coming: Whether more nodes boot.
        settled: Seconds since the last node became ready.
        settle_seconds: How long it is waited for more than have come.
        asked_for: Seconds since the workers are asked to stop; None if they are not.
        seconds_left: How long the gang may run with the nodes beside it.
        seconds_with_all: How long it may run with all that are lacking besides.
        is_due: Whether it is time to ask for nodes.
        over: Whether this attempt asks for no more.
        given_up: Whether its ranks are not asked to stop any more.
    """

    size: int
    most: int
    joining: int
    ready: int
    leaving: bool
    stoppable: bool
    told: bool
    ending: bool
    is_open: bool
    coming: bool
    settled: float
    settle_seconds: float
    asked_for: float | None
    seconds_left: float
    seconds_with_all: float
    is_due: bool
    over: bool
    given_up: bool

    def next_step(self) -> GrowthStep:
        """What is done next."""
        # Before what is open: that may take several steps.
        if self.joining and not self.ending and self._is_in_vain():
            return GrowthStep.GIVE_UP
        if self.is_open and self._is_useless():
            return GrowthStep.WITHDRAW
        # A node is charged from its start, so an open launch is looked at in every state of the gang.
        goes_on = GrowthStep.LAUNCH if self.is_open and self.is_due else GrowthStep.WAIT
        if self.ending:
            return goes_on
        if self.told or not self.stoppable:
            return goes_on
        if self.asked_for is not None:
            return goes_on if self.joining else GrowthStep.ASK_NO_MORE
        are_ready = self.joining and self.ready == self.joining and not self.coming
        if (
            are_ready
            and not self.leaving
            and (self._lacking <= 0 or self.settled >= self.settle_seconds)
        ):
            return GrowthStep.ASK
        return GrowthStep.LAUNCH if self._may_launch() else goes_on

    @property
    def _lacking(self) -> int:
        return self.most - self.size - self.joining

    def _may_launch(self) -> bool:
        worth_it = self.seconds_with_all >= LEAST_SECONDS
        return self._lacking > 0 and self.is_due and not self.over and worth_it

    def _is_useless(self) -> bool:
        """Whether a launch that is open brings nothing that is of use."""
        if self.over or self._lacking <= 0 or self.seconds_with_all < LEAST_SECONDS:
            return True
        # Machines that boot are taken by the next attempt.
        return (self.ending or self.told) and not self.coming

    def _is_in_vain(self) -> bool:
        """Whether the nodes beside the gang will not be used."""
        late = (self.asked_for or 0.0) >= GIVE_UP_SECONDS
        return self.given_up or late or self.seconds_left < LEAST_SECONDS
