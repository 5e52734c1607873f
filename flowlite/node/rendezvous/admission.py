"""Which agent is admitted as which member of a gang. Pure: it decides, and changes nothing."""

from __future__ import annotations

from ..protocol.messages import ENDED, GATHERING, PREPARING, Message
from ..quick_dataclass import dataclass
from .actions import Peer
from .membership import Members, MemberState


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an agent may not join.

    Attributes:
        reason: For the agent, and for users.
        member: The member that it asked to be, if the roster has it.
        warning: Whether users are warned.
        doubt: Why the member's earlier agent may be gone; "" if the join does not suggest that.
    """

    reason: str
    member: MemberState | None = None
    warning: bool = False
    doubt: str = ""


def admit(members: Members, phase: str, peer: Peer, join: Message) -> MemberState | Refusal:
    """Returns the member that an agent becomes, or why it is refused."""
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
            f"{name} had started workers under an earlier agent; it can come back in the next attempt only",
            member,
            doubt="another agent of it asks to join, so the one that had started is gone",
        )
    return member
