"""The node's program: `python agent.pyz SUBCOMMAND`, or `python -m flowlite.node SUBCOMMAND` in a source tree.

Subcommands:

    agent ATTEMPT_DIR        be the agent of an attempt
    agent --detach DIR...    fork one agent for each directory, and return
    warm SPEC.json [FD]      be the fork server (started by agents and by the local provider)
    worker ORDER.json PID    be a worker in a fresh interpreter (started by the reaper)
    buckets ATTEMPT_DIR      hold the buckets of an attempt (started by the agent)
    checkpoints ORDER PID    copy the checkpoints of a node away (started by its agent)
    share-server, -sftp ...  serve volumes to the other nodes (started by the leader's agent)
    share-mount, -tunnel ... show volumes that the leader serves (started by the other agents)
    volumes ATTEMPT_DIR      hold volumes that the machine mounts (started by the agent)
    gang WHAT ATTEMPT_DIR... connect the nodes of a gang that node 0 leads (see leader_run/commands.py)
    exec NODE_HOME -- ARGV   run a command in the node's environment (used by `flow ssh`)
    look NODE_HOME           say where each worker is, and how the node is (used by `flow doctor`)
    stats NODE_HOME          say what the node is doing, as counters (used by `flow top`)
    links serve|measure ...  measure the way to another node (used by `flow doctor`)
    lease WHAT [NAME]        take, release, keep or show the host (used by the SSH provider)
    courier                  do many things for one client, over one channel (used by SSH connections)
    porter [--anchor HOME]   carry commands, files and streams of one client over one pipe (used by step connections)
    anchor --dir DIR ...     hold one node of a Slurm job, and be the parent of all that runs there
    srun, scontrol DIR ...   what a batch script finds in the place of Slurm's (batch/)
    outputs                  list the files of a working directory that are to be brought back
    project                  make the working directory, or say what is lacking (asked before agents start)
    pythons                  say whether the Python that is asked for is here (asked before agents start)
    version                  say which Python this is

What is imported depends on the subcommand: what is not imported takes no time and no memory.
"""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand; gives the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    what, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if what == "agent" and rest:
        # asyncio imports ssl if it can: a third of the agent's memory, for nothing.
        sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
        from .agent import main as agent_main

        return agent_main.main(rest)
    if what == "warm" and rest:
        from .forkserver import server

        server.main(rest)
    if what == "worker" and len(rest) == 2:
        from .worker import worker

        worker.main_of_spawned(rest)
    if what == "buckets" and rest:
        from .buckets import mount_sidecar

        return mount_sidecar.main(rest)
    if what == "checkpoints" and len(rest) == 2:
        from .checkpoints import sidecar as session

        return session.main(rest)
    if what in ("share-server", "share-sftp"):
        from .leader_volumes import server as sharing_server

        return {"share-server": sharing_server.main, "share-sftp": sharing_server.serve_one}[what](
            rest
        )
    if what in ("share-mount", "share-tunnel"):
        from .leader_volumes import sshfs_sidecar as sharing_mount

        return {"share-mount": sharing_mount.main, "share-tunnel": sharing_mount.tunnel}[what](rest)
    if what == "volumes" and rest:
        from .attached_volumes import sidecar as attached

        return attached.main(rest)
    if what == "gang" and len(rest) >= 2:
        from .leader_run import commands

        return commands.main(rest)
    if what == "exec" and rest:
        from .inspect import exec as enter

        return enter.main(rest)
    if what == "look" and rest:
        from .inspect import look

        return look.main(rest)
    if what == "stats" and rest:
        from .inspect import metrics

        return metrics.main(rest)
    if what == "links" and rest:
        from .inspect import netbench

        return netbench.main(rest)
    if what == "lease" and rest:
        from .host_lease import client

        return client.main(rest)
    if what == "courier":
        from .helper import courier

        return courier.main(rest)
    if what == "porter":
        from .helper import mux_server

        return mux_server.main(rest)
    if what == "anchor" and rest:
        from .slurm_step import daemon

        return daemon.main(rest)
    if what == "srun" and rest:
        from .sbatch import srun

        return srun.main(rest)
    if what == "scontrol" and rest:
        from .sbatch import scontrol

        return scontrol.main(rest)
    if what == "outputs":
        from .outputs import listing

        return listing.main()
    if what == "pythons":
        from .python_env import environments

        return environments.main(rest)
    if what == "project":
        from .project_files import make

        return make.main()
    if what == "version":
        sys.stdout.write(f"{sys.version}\n")
        return 0
    sys.stderr.write(f"usage: {(__doc__ or '').strip()}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
