"""The values of `distributed_mode`: how the processes of a gang are started.

    auto      flowlite starts every worker
    manual    the command runs once on each node, and starts its processes with a launcher of its own
    ray       the call runs once, on node 0, in a Ray cluster of all nodes
    mpi       the call runs under `mpirun`, which node 0 starts

In the last two modes node 0 leads: all other nodes only serve its requests (node/leader_run/commands.py).
"""

from __future__ import annotations

AUTO, MANUAL, RAY, MPI = "auto", "manual", "ray", "mpi"

ALL = (AUTO, MANUAL, RAY, MPI)
LED = (RAY, MPI)
"""The modes in which only node 0 runs the call."""
