"""The ways in which the processes of a gang are started, by their names in `distributed_mode`.

    auto      flowlite starts every worker
    manual    the command runs once on each node; a launcher of the user does the rest
    ray       the call runs once, on node 0, in a Ray cluster of all nodes
    mpi       the call runs under `mpirun`, which node 0 starts

In the last two node 0 leads: all other nodes only do what it asks them to (leader_run/commands.py).
"""

from __future__ import annotations

AUTO, MANUAL, RAY, MPI = "auto", "manual", "ray", "mpi"

ALL = (AUTO, MANUAL, RAY, MPI)
LED = (RAY, MPI)
"""Those in which only node 0 runs the call."""
