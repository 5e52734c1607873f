"""Who may take a seat: one decision, without any effect."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.messages import ENDED, GATHERING, PREPARING, Message
from .actions import Peer
from .membership import Seat, Seats


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an agent may not join.

    Attributes:
        reason: For the agent, and for people.
        seat: The seat that it claimed, if there is one.
        warning: Whether people should hear of it.
        doubt: What it says about the one who sits there; "" if nothing.
    """

    reason: str
    seat: Seat | None = None
    warning: bool = False
    doubt: str = ""


def admit(seats: Seats, phase: str, peer: Peer, join: Message) -> Seat | Refusal:
    """The seat that an agent gets, or why it gets none."""
    seat = seats.of_instance(join["instance"])
    if seat is None or peer.name != join["instance"]:
        return Refusal(f"{join['instance']} is not in the roster of this gang")
    if seat.joined and seat.incarnation == join["incarnation"]:
        return seat
    name = seats.name(seat)
    if seat.connection is not None:
        reason = (
            f"two agents claim to be {name}: one at {seat.address}, another at {peer.address}; the second was refused. "
            "Make sure that every node has an id of its own and is started once"
        )
        return Refusal(reason, seat, warning=phase != ENDED)
    if phase == ENDED:
        return Refusal("the gang has ended")
    if seat.joined and phase not in (GATHERING, PREPARING):
        return Refusal(
            f"{name} had started workers under an earlier agent; it can come back in the next epoch only",
            seat,
            doubt="another agent of it asks to join, so the one that had started is gone",
        )
    return seat
