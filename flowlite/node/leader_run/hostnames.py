"""Which node of a gang a program means by the name of a host."""

from __future__ import annotations

from collections.abc import Sequence

_PREFIX = "flow-node-"


def node_named(host: str, addresses: Sequence[str]) -> int | None:
    """The rank of a node, by its address, by `flow-node-RANK`, or with a user in front of either; None if it is none.

    Args:
        addresses: One for each node, by rank.
    """
    name = host.rpartition("@")[2].strip("[]")
    rank = name.removeprefix(_PREFIX)
    if rank != name:
        return int(rank) if rank.isdigit() and int(rank) < len(addresses) else None
    return list(addresses).index(name) if name in addresses else None
