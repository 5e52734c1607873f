"""What the nodes of an attempt that has ended hold that is not here yet, and what follows: one decision, no effect.

A task is completed only with all of its logs and results here. What is missing is waited for by this table:

    what is missing is on a node that   every rank ended well   otherwise
    does not exist any more             lost                    lost
    cannot be reached                   waited for              not waited for, kept there
    answers, or is passed on by others  waited for              waited for
    any of these, and nobody waits      kept there              kept there

It is waited for until `patience` seconds have passed in which something of the provider did answer: while nothing does,
it is our own network that is gone. Nobody waits any more once the task is cancelled, or its money is used up.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

PATIENCE = 600.0
"""Seconds that results and logs are waited for."""
PATIENCE_BADLY = 5.0
"""So long for what a node cannot give of a gang that has failed already."""


class HoldingPlace(StrEnum):
    """How a node stands to us."""

    ANSWERS = "answers"
    SILENT = "silent"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Holding:
    """What one node holds that is not here.

    Attributes:
        node: Its rank.
        files: What is missing, by name as on the node ("r2.result"): bytes in all, None where that is not known.
        trouble: Why it could not be fetched from a node that answers; "" if that was not tried, or goes on.
        ours: Whether it is the disk here that is in the way.
    """

    node: int
    files: tuple[tuple[str, int | None], ...]
    place: HoldingPlace = HoldingPlace.ANSWERS
    trouble: str = ""
    ours: bool = False

    @property
    def complete(self) -> bool:
        """Whether nothing is missing, so that the node may forget what it holds."""
        return not self.files


@dataclass(frozen=True, slots=True)
class Outlook:
    """What follows.

    Attributes:
        waits_for: What is still being waited for.
        lacking: What will not come, if it ends now; all that is not here once nothing is waited for.
    """

    waits_for: tuple[Holding, ...]
    lacking: tuple[Holding, ...]

    @property
    def over(self) -> bool:
        """Whether nothing is waited for any more."""
        return not self.waits_for

    @property
    def lost(self) -> tuple[Holding, ...]:
        """What no node has any more."""
        return tuple(each for each in self.lacking if each.place is HoldingPlace.GONE)

    @property
    def kept(self) -> tuple[Holding, ...]:
        """What its nodes still have, and must not forget."""
        return tuple(each for each in self.lacking if each.place is not HoldingPlace.GONE)


def outlook(
    holdings: Iterable[Holding], *, ended_well: bool, waited: float, given_up: bool
) -> Outlook:
    """What follows from what the nodes hold.

    Args:
        holdings: Of all nodes.
        ended_well: Whether every rank ended well.
        waited: For how long it has been waited, without the time in which nothing answered from here.
        given_up: Whether nobody wants to wait.
    """
    lacking = tuple(each for each in holdings if not each.complete)
    waits_for = tuple(
        each for each in lacking if not given_up and _is_waited_for(each, ended_well, waited)
    )
    return Outlook(waits_for, lacking)


def _is_waited_for(holding: Holding, ended_well: bool, waited: float) -> bool:
    if holding.place is HoldingPlace.GONE or waited >= PATIENCE:
        return False
    if ended_well or holding.ours:
        return True
    if holding.place is HoldingPlace.SILENT:
        return False
    return not holding.trouble or waited < PATIENCE_BADLY
