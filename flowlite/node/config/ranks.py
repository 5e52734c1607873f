"""Assigns ranks. This is the only place that does, for every provider.

A node's rank is its position in the roster; workers' ranks are node-major. The roster is made once for each task from
the instance ids. After that it only changes by replacing one id with another, so no remaining node ever changes rank.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence


class RankError(ValueError):
    """An invalid roster: empty, with a duplicate id, or without the node that it should contain."""


def assign_ranks(instances: Iterable[str]) -> list[str]:
    """Returns the roster of a new gang: the instance ids, sorted. The index is the node rank; rank 0 is the leader."""
    roster = sorted(instances)
    check(roster)
    return roster


def replace(roster: Sequence[str], old: str, new: str) -> list[str]:
    """Returns the roster with `new` in the position, and so with the rank, of `old`. No other rank changes."""
    if old not in roster:
        raise RankError(
            f"{old} is not in the gang, so nothing can replace it; the gang is {list(roster)}"
        )
    replaced = [new if instance == old else instance for instance in roster]
    check(replaced)
    return replaced


def check(roster: Sequence[str]) -> None:
    """Raises `RankError` if the roster is empty, or has an empty or a duplicate id."""
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
    """Returns the rank of a node. Raises `RankError` if it is not in the gang."""
    try:
        return list(roster).index(instance)
    except ValueError:
        raise RankError(f"{instance} is not in the gang {list(roster)}") from None


def global_rank(node: int, processes_per_node: int, local_rank: int) -> int:
    """Returns the rank of a worker: node-major, as in torchrun."""
    return node * processes_per_node + local_rank


def node_of(rank: int, processes_per_node: int) -> int:
    """Returns the rank of the node on which a worker runs."""
    return rank // processes_per_node


def digest(roster: Sequence[str]) -> str:
    """Returns a short hash by which leader and members check that they have the same roster."""
    return hashlib.sha256("\0".join(roster).encode()).hexdigest()[:32]
