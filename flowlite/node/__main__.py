"""The node's program: `python agent.pyz SUBCOMMAND`, or `python -m flowlite.node SUBCOMMAND` in a source tree.

Subcommands:

    agent ATTEMPT_DIR        be the agent of an attempt
    agent --detach DIR...    fork one agent for each directory, and return
    warm SPEC.json [FD]      be the fork server (started by agents and by the local provider)
    worker ORDER.json PID    be a worker in a fresh interpreter (started by the reaper)
    buckets ATTEMPT_DIR      hold the buckets of an attempt (started by the agent)
    checkpoints ORDER PID    copy the checkpoints of a node away (started by its agent)
    share-server ...         serve volumes to the other nodes (started by the leader's agent)
    share-sftp ...           serve one volume to one connection (started by the server)
    share-mount ...          show volumes that the leader serves (started by the other agents)
    share-tunnel ...         carry one volume's connection to the leader (started by the mount)
    volumes ATTEMPT_DIR      hold volumes that the machine mounts (started by the agent)
    gang WHAT ATTEMPT_DIR... connect the nodes of a gang that node 0 leads (see leader_run/commands.py)
    exec NODE_HOME -- ARGV   run a command in the node's environment (used by `flow ssh`)
    look NODE_HOME           say where each worker is, and how the node is (used by `flow doctor`)
    stats NODE_HOME          say what the node is doing, as counters (used by `flow top`)
    speed                    measure how fast matrices are multiplied here (asked before GO, with preflight=)
    links serve|measure ...  measure the way to another node (used by `flow doctor`)
    lease WHAT [NAME]        take, release, keep or show the host (used by the SSH provider)
    keep-machine             end a task on a rented machine that is kept for the next one
    courier                  do many things for one client, over one channel (used by SSH connections)
    mux-server [--daemon D]  carry commands, files and streams of one client over one pipe (used by step connections)
    step-daemon --dir D ...  hold one node of a Slurm job, and be the parent of all that runs there
    srun, scontrol DIR ...   what a batch script finds in the place of Slurm's (sbatch/)
    outputs                  list the files of a working directory that are to be brought back
    contents-serve           give contents of the task to other nodes (asked before agents start)
    contents-fetch           get contents of the task from other nodes (asked before agents start)
    project                  make the working directory, or say what is lacking (asked before agents start)
    pythons                  say whether the Python that is asked for is here (asked before agents start)

What is imported depends on the subcommand: what is not imported takes no time and no memory.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# Module, function, and the least number of arguments.
SUBCOMMANDS: dict[str, tuple[str, str, int]] = {
    "agent": ("agent.main", "main", 1),
    "warm": ("forkserver.server", "main", 1),
    "worker": ("worker.worker", "main_of_spawned", 2),
    "buckets": ("buckets.mount_sidecar", "main", 1),
    "checkpoints": ("checkpoints.sidecar", "main", 2),
    "share-server": ("leader_volumes.server", "main", 2),
    "share-sftp": ("leader_volumes.server", "serve_one", 3),
    "share-mount": ("leader_volumes.sshfs_sidecar", "main", 3),
    "share-tunnel": ("leader_volumes.sshfs_sidecar", "tunnel", 3),
    "volumes": ("attached_volumes.sidecar", "main", 1),
    "gang": ("leader_run.commands", "main", 2),
    "exec": ("inspect.exec", "main", 1),
    "look": ("inspect.look", "main", 1),
    "speed": ("preflight.speed", "main", 0),
    "stats": ("inspect.metrics", "main", 1),
    "links": ("inspect.netbench", "main", 1),
    "lease": ("host_lease.client", "main", 1),
    "keep-machine": ("host_lease.kept_machine", "main", 0),
    "courier": ("helper.courier", "main", 0),
    "mux-server": ("helper.mux_server", "main", 0),
    "step-daemon": ("slurm_step.daemon", "main", 1),
    "srun": ("sbatch.srun", "main", 1),
    "scontrol": ("sbatch.scontrol", "main", 1),
    "outputs": ("outputs.listing", "main", 0),
    "contents-serve": ("contents.serve", "main", 0),
    "contents-fetch": ("contents.fetch", "main", 0),
    "project": ("project_files.make", "main", 0),
    "pythons": ("python_env.environments", "main", 0),
}


def main(arguments: list[str] | None = None) -> int:
    """Runs one subcommand. Returns the exit code."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or [""]
    module, function, least = SUBCOMMANDS.get(name, ("", "", 0))
    if not module or len(rest) < least:
        sys.stderr.write(f"usage: {(__doc__ or '').strip()}\n")
        return 2
    if name == "agent":
        # asyncio imports ssl if it can: a third of the agent's memory, for nothing.
        sys.modules.setdefault("ssl", None)  # type: ignore[arg-type]
    is_awaited = name in ("agent", "warm")
    # A `sitecustomize` that has turned it off means the workers, too, which are forked from a fork server.
    is_collecting = gc.isenabled()
    if is_awaited:
        # The garbage collector would look through what is imported again and again, and find nothing.
        gc.disable()
    run: Callable[[list[str]], int] = getattr(import_module(f".{module}", __package__), function)
    if is_awaited:
        gc.freeze()
        if is_collecting:
            gc.enable()
    return run(rest)


if __name__ == "__main__":
    sys.exit(main())
