"""Decides about files that were not fetched yet from the nodes of an attempt that has ended. Pure: no effects.

A task is completed only with all of its logs and results. For missing files this table applies:

    the missing file is on a node that    every rank ended well   otherwise
    does not exist any more               lost                    lost
    cannot be reached                     waited for              not waited for, kept there
    answers, or is relayed by the leader  waited for              waited for
    any of these, after waiting was ended kept there              kept there

Files are waited for until `PATIENCE` seconds have passed in which some part of the provider answered, and next to
nothing came. Time in which nothing answers does not count, since our own network is down then. Waiting ends early when
the task is cancelled or its money is used up.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from flowlite.node.quick_dataclass import dataclass

PATIENCE = 600.0
"""Seconds for which results and logs are waited for that do not come."""
PATIENCE_BADLY = 5.0
"""Seconds for which a file that a node fails to deliver is waited for, after the gang has failed."""


class HoldingPlace(StrEnum):
    """Whether a node that holds files can be reached."""

    ANSWERS = "answers"
    SILENT = "silent"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class MissingOnNode:
    """The missing files on one node.

    Attributes:
        node: Rank of the node.
        files: Missing files: name on the node ("r2.result") and size in bytes, None if not known.
        place: Whether the node can be reached.
        trouble: Why the files could not be fetched from a node that answers; "" if that was not tried, or is in
            progress.
        ours: Whether the disk of this machine is the cause.
    """

    node: int
    files: tuple[tuple[str, int | None], ...]
    place: HoldingPlace = HoldingPlace.ANSWERS
    trouble: str = ""
    ours: bool = False

    @property
    def complete(self) -> bool:
        """Whether nothing is missing, so that the node may remove its files."""
        return not self.files


@dataclass(frozen=True, slots=True)
class MissingFilesDecision:
    """What to do about missing files.

    Attributes:
        waits_for: Files that are still waited for.
        lacking: All files that are missing if waiting ends now.
    """

    waits_for: tuple[MissingOnNode, ...]
    lacking: tuple[MissingOnNode, ...]

    @property
    def over(self) -> bool:
        """Whether nothing is waited for any more."""
        return not self.waits_for


def outlook(
    holdings: Iterable[MissingOnNode], *, ended_well: bool, waited: float, given_up: bool
) -> MissingFilesDecision:
    """Returns what to do about the files that the nodes hold.

    Args:
        ended_well: Whether every rank ended well.
        waited: Seconds waited since files came, without the time in which nothing answered from here.
        given_up: Whether waiting was ended.
    """
    lacking = tuple(each for each in holdings if not each.complete)
    waits_for = tuple(
        each for each in lacking if not given_up and _is_waited_for(each, ended_well, waited)
    )
    return MissingFilesDecision(waits_for, lacking)


def _is_waited_for(holding: MissingOnNode, ended_well: bool, waited: float) -> bool:
    if holding.place is HoldingPlace.GONE or waited >= PATIENCE:
        return False
    if ended_well or holding.ours:
        return True
    if holding.place is HoldingPlace.SILENT:
        return False
    return not holding.trouble or waited < PATIENCE_BADLY
