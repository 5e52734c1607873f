"""Who may take a member: one decision, without any effect."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.messages import ENDED, GATHERING, PREPARING, Message
from .actions import Peer
from .membership import Members, MemberState


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an agent may not join.

    Attributes:
        reason: For the agent, and for people.
        member: The member that it claimed, if there is one.
        warning: Whether people should hear of it.
        doubt: What it says about the one who sits there; "" if nothing.
    """

    reason: str
    member: MemberState | None = None
    warning: bool = False
    doubt: str = ""


def admit(members: Members, phase: str, peer: Peer, join: Message) -> MemberState | Refusal:
    """The member that an agent gets, or why it gets none."""
    member = members.of_instance(join["instance"])
    if member is None or peer.name != join["instance"]:
        return Refusal(f"{join['instance']} is not in the roster of this gang")
    if member.joined and member.incarnation == join["incarnation"]:
        return member
    name = members.name(member)
    if member.connection is not None:
        reason = (
            f"two agents claim to be {name}: one at {member.address}, another at {peer.address}; the second was "
            "refused. "
            "Make sure that every node has an id of its own and is started once"
        )
        return Refusal(reason, member, warning=phase != ENDED)
    if phase == ENDED:
        return Refusal("the gang has ended")
    if member.joined and phase not in (GATHERING, PREPARING):
        return Refusal(
            f"{name} had started workers under an earlier agent; it can come back in the next epoch only",
            member,
            doubt="another agent of it asks to join, so the one that had started is gone",
        )
    return member
