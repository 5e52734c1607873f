"""Assigns ranks. This is the only place that does, for every provider.

A node's rank is its position in the roster; workers' ranks are node-major. The roster of a task's first attempt is made
from the instance ids. After that, a new node takes the rank of one that is gone. In a gang of one size, no remaining
node ever changes rank. A gang that has shrunk or grown has all ranks from 0 on, and its remaining nodes keep their
order.
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


def split_spares(instances: Iterable[str], nodes: int) -> tuple[list[str], list[str]]:
    """Returns which of the first instances of a task are its nodes, by rank, and which are spares."""
    ordered = assign_ranks(instances)
    return ordered[:nodes], ordered[nodes:]


def succeed(roster: Sequence[str], gone: Iterable[str], new: Iterable[str]) -> list[str]:
    """Returns the roster of the next attempt.

    New nodes, in the order of their ids, take the ranks of those that are gone. If there are fewer, the ranks that are
    left over are closed up. If there are more, the others get the ranks behind.
    """
    lost, joining = set(gone), sorted(new)
    vacant = [instance for instance in roster if instance in lost]
    place_of = dict(zip(vacant, joining, strict=False))
    stay = [place_of.get(each, each) for each in roster if each not in lost or each in place_of]
    found = [*stay, *joining[len(place_of) :]]
    check(found)
    return found


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


def global_rank(node: int, processes_per_node: int, local_rank: int) -> int:
    """Returns the rank of a worker: node-major, as in torchrun."""
    return node * processes_per_node + local_rank


def node_of(rank: int, processes_per_node: int) -> int:
    """Returns the rank of the node on which a worker runs."""
    return rank // processes_per_node


def digest(roster: Sequence[str]) -> str:
    """Returns a short hash by which leader and members check that they have the same roster."""
    return hashlib.sha256("\0".join(roster).encode()).hexdigest()[:32]
