"""Maps host names that programs use to nodes of a gang."""

from __future__ import annotations

from collections.abc import Sequence

_PREFIX = "flow-node-"


def node_named(host: str, addresses: Sequence[str]) -> int | None:
    """Returns the rank of a node, or None if it is not in the gang.

    The node is named by its address or by `flow-node-RANK`, with or without a user in front.

    Args:
        addresses: One for each node, by rank.
    """
    name = host.rpartition("@")[2].strip("[]")
    rank = name.removeprefix(_PREFIX)
    if rank != name:
        return int(rank) if rank.isdigit() and int(rank) < len(addresses) else None
    return list(addresses).index(name) if name in addresses else None
