"""`gang WHAT …`: the programs of a gang that node 0 leads.

gang relay ATTEMPT_DIR               connect the nodes (started by the agent of node 0)
gang lead ATTEMPT_DIR                be beside the worker of node 0
gang follow ATTEMPT_DIR              be the worker of another node
gang ssh ATTEMPT_DIR ARGUMENTS...    be ssh, between the nodes of the gang
gang run ATTEMPT_DIR NODE ARGV...    run a command on a node; its output and exit code become ours
gang rank ATTEMPT_DIR [COMMAND...]   be one process of a gang under mpirun
gang ray ATTEMPT_DIR ARGUMENTS...    be `ray start` on this node
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Runs one of the programs and returns the exit code."""
    what, directory, rest = arguments[0], arguments[1], arguments[2:]
    if what == "relay":
        from . import relay

        return relay.main(directory)
    if what in ("lead", "follow"):
        from . import processes

        return {"lead": processes.lead, "follow": processes.follow}[what](directory)
    if what == "ssh":
        from . import ssh_shim

        return ssh_shim.main(directory, rest)
    if what == "rank":
        from . import mpi_rank

        return mpi_rank.main(directory, rest)
    if what == "ray":
        from . import ray_cluster

        return ray_cluster.main(directory, rest)
    if what == "run" and len(rest) >= 2:
        return _run(directory, int(rest[0]), rest[1:])
    sys.stderr.write(f"usage: {(__doc__ or '').strip()}\n")
    return 2


def _run(directory: str, node: int, argv: Sequence[str]) -> int:
    from .context import GangContext
    from .remote_exec import call

    try:
        code = call(GangContext.read(directory), node, argv, source=0)
    except KeyboardInterrupt:
        return 130
    except (OSError, ValueError) as error:
        sys.stderr.write(f"flowlite: {error}\n")
        return 255
    return code if code >= 0 else 128 - code
