"""Where ranks are made: the one place, for every provider.

A node's rank is its position in the roster; a worker's rank is node-major. The roster is made once per task from the
instance ids, and after that it only changes by replacing one id with another, so that no survivor ever changes rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence


class RankError(ValueError):
    """A roster that cannot be: empty, with an id twice, or without the node it should hold."""


def assign_ranks(instances: Iterable[str]) -> list[str]:
    """The roster of a new gang: instance ids in sorted order. The index is the node rank; rank 0 leads."""
    roster = sorted(instances)
    check(roster)
    return roster


def replace(roster: Sequence[str], old: str, new: str) -> list[str]:
    """The roster with `new` in the place (hence with the rank) that `old` leaves. Nobody else moves."""
    if old not in roster:
        raise RankError(
            f"{old} is not in the gang, so nothing can replace it; the gang is {list(roster)}"
        )
    replaced = [new if instance == old else instance for instance in roster]
    check(replaced)
    return replaced


def check(roster: Sequence[str]) -> None:
    """Raise `RankError` unless the roster has members, each with a name, none of them twice."""
    if not roster:
        raise RankError("a gang needs at least one node; the roster is empty")
    if not all(isinstance(instance, str) and instance for instance in roster):
        raise RankError(f"every node of a roster needs an instance id; got {list(roster)}")
    seen: set[str] = set()
    for instance in roster:
        if instance in seen:
            raise RankError(
                f"instance {instance} stands twice in the roster; every node has one rank"
            )
        seen.add(instance)


def node_rank(roster: Sequence[str], instance: str) -> int:
    """The rank of a node. Raises `RankError` if it is not in the gang."""
    try:
        return list(roster).index(instance)
    except ValueError:
        raise RankError(f"{instance} is not in the gang {list(roster)}") from None


def global_rank(node: int, processes_per_node: int, local_rank: int) -> int:
    """The rank of a worker: node-major, as torchrun counts."""
    return node * processes_per_node + local_rank


def node_of(rank: int, processes_per_node: int) -> int:
    """The node rank on which a worker runs."""
    return rank // processes_per_node


def digest(roster: Sequence[str]) -> str:
    """A short fingerprint, by which leader and members make sure that they mean the same gang."""
    return hashlib.sha256("\0".join(roster).encode()).hexdigest()[:32]
