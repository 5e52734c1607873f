"""Finds the processes of a node that are ranks: its workers, or the processes that a launcher below a worker started.

A worker may be a launcher (`torchrun`, `mpirun`) or a program that starts one Python (`sh -c "python train.py"`). A
rank is then a Python process below it whose launcher has set a rank for it. Children of a rank, such as those of a
DataLoader, inherit that rank; they are not ranks.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from ..config import distributed_modes
from ..leader_run import mpi
from ..system import processes
from ..system.stack_dump import living_workers
from ..worker.environment import without_launchers
from .exec import reaper_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ..config.agent_config import AgentConfig

# They differ between a launcher and the process that it starts, even if both have the same rank.
_SET_BY_LAUNCHERS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")


class RankProcess(NamedTuple):
    """One rank, and the process that it is.

    `environment` is the environment that the process was started with. `note` is the worker's own note
    (`system/stack_dump.py`), or None for a process that a launcher started.
    """

    rank: int
    pid: int
    environment: Mapping[str, str]
    note: Mapping[str, Any] | None


def of_node(attempt: str, entry: Mapping[str, Any], config: AgentConfig) -> list[RankProcess]:
    """Returns the running ranks of a node, by rank.

    Args:
        attempt: The directory of the attempt.
        entry: The agent's entry for it (`exec.latest_entry`).
    """
    rows = processes.table()
    notes = {int(note["pid"]): note for note in living_workers(attempt)}
    led = config.mode in distributed_modes.LED
    # The daemon of `mpirun` leaves its parent, and the node's reaper adopts it.
    adopts = reaper_of(entry) if led else None
    roots = [*notes, *(() if adopts is None else (adopts,))]
    # The agent's entry has what it added to the environment of the node.
    given = {**without_launchers(os.environ), **entry.get("environment", {})}
    pythons = {
        pid: _environment(pid, notes.get(pid), given)
        for pid in {*notes, *processes.descendants(roots, rows)}
        if _is_python(pid)
    }
    started = _started_by_launchers(pythons, rows)
    found: dict[int, RankProcess] = {}
    for pid, rank in sorted(started.items()):
        found.setdefault(rank, RankProcess(rank, pid, pythons[pid], notes.get(pid)))
    # The workers of the other nodes of a led gang are flowlite's own programs.
    for pid, note in notes.items() if not led or config.is_leader else ():
        if not started.keys() & {pid, *processes.descendants([pid], rows)}:
            rank, environment = int(note["rank"]), _environment(pid, note, given)
            found.setdefault(rank, RankProcess(rank, pid, environment, note))
    return [found[rank] for rank in sorted(found)]


def _environment(
    pid: int, note: Mapping[str, Any] | None, given: Mapping[str, str]
) -> Mapping[str, str]:
    """Returns the environment that a process was started with; for a forked worker, which flowlite gave it.

    For a forked function, /proc shows the environment of the fork server, which belongs to no rank.
    """
    own = processes.environment_of(pid)
    if note is None or "NODE_RANK" in own:
        return own
    return {**given, "RANK": str(note["rank"])} if "RANK" in given else given


def _started_by_launchers(
    pythons: Mapping[int, Mapping[str, str]], rows: Mapping[int, processes.Row]
) -> dict[int, int]:
    """Returns the innermost processes that have not inherited their rank from another one, with their ranks.

    Args:
        pythons: The Python processes, with their environments.
    """
    ranks = {
        pid: rank for pid, variables in pythons.items() if (rank := _rank(variables)) is not None
    }
    places = {
        pid: (rank, *(pythons[pid].get(name) for name in _SET_BY_LAUNCHERS))
        for pid, rank in ranks.items()
    }
    started, launchers = set(), set[int]()
    for pid, place in places.items():
        above = [each for each in _ancestors(pid, rows) if each in places]
        if not above or places[above[0]] != place:
            started.add(pid)
            launchers.update(above)
    return {pid: ranks[pid] for pid in started - launchers}


def _ancestors(pid: int, rows: Mapping[int, processes.Row]) -> Iterator[int]:
    while pid in rows and rows[pid].parent != pid:
        pid = rows[pid].parent
        yield pid


def _rank(environment: Mapping[str, str]) -> int | None:
    """Returns the rank that a process was started with, or None."""
    rank = environment.get("RANK", "")
    if rank.isdecimal():
        return int(rank)
    under_mpi = mpi.ranks(environment)
    return None if under_mpi is None else under_mpi[0]


def _is_python(pid: int) -> bool:
    try:
        return "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
