"""Whose process listens on a port of a node.

Any user of a machine can listen on a port of its own address first. What a user types into a browser, such as a token,
would then go to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowlite.errors import NodeUnreachable

if TYPE_CHECKING:
    from flowlite.api.node_access import NodeAccess

# In the surroundings of the task, so that a container is asked for its own users and its own ports. 0A is LISTEN.
_ASK = 'id -u; grep -h " 0A " /proc/net/tcp /proc/net/tcp6 2>/dev/null; exit 0'
# Local addresses that a connection to 127.0.0.1 reaches, as the kernel writes them.
_REACHED = ("0100007F", "7F000001", "00000000", "0" * 32, "0000000000000000FFFF00000100007F")
_SECONDS = 60.0


def other_user(there: NodeAccess, port: int) -> int | None:
    """The user id of somebody else who listens on a port of a node; None if the task's user does, or it is not known.

    Raises NodeUnreachable.
    """
    done = there.connection.run(there.argv(_ASK), timeout=_SECONDS)
    own, *sockets = done.stdout.decode("ascii", "replace").splitlines() or [""]
    if not own.strip().isdigit():
        raise NodeUnreachable(f"the node does not say who listens on its port {port}")
    places = [f"{address}:{port:04X}" for address in _REACHED]
    for line in sockets:
        words = line.split()
        if len(words) > 7 and words[1] in places and words[7] != own.strip():
            return int(words[7]) if words[7].isdigit() else -1
    return None
