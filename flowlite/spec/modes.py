"""Options that cannot be combined with a distributed mode."""

from __future__ import annotations


def mode_problem(mode: str, start: str) -> str:
    """Why two options contradict each other; "" if they do not."""
    if mode == "mpi" and start == "fork":
        return "start: 'fork' does not go with distributed_mode 'mpi', where mpirun starts processes; leave it out"
    return ""
