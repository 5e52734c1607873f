"""Everything that runs on a node: one program for agents, workers and the processes beside them.

The package imports only the standard library and itself, because nothing can be installed where it runs. The
submitting machine zips it under the name `flowlite_node` (`bundle/agent_zip.py`) and sends the zip, which is addressed
by its hash. `__main__.py` has the table of subcommands.

```text
agent ──Unix socket──> reaper ──fork──> worker, worker, …
  │                      ▲ fork
  │                    fork server: imports once
  └──pipe──> sidecars: buckets, checkpoints, volumes
```

The rooms, each of which imports only rooms below it:

    slurm_step                                   the step daemon: the one process of a Slurm job's step on a node
    helper                                       files, commands and streams for one client, over one channel
    agent                                        one node in one attempt, from join to end
    preflight, setup                             checks before GO; the commands of `setup=`
    inspect                                      what `flow ssh`, `flow doctor` and `flow top` ask of a node
    containers, host_lease, leader_run           images; the lease of a host; gangs that node 0 leads (Ray, MPI)
    python_env, forkserver, preemption           environments; the fork server; preemption notices and `should_stop()`
    rendezvous, worker                           the service that makes nodes a gang; the process of one rank
    leader_volumes, log_stream, sbatch           volumes on the leader's disk; output by offset; batch scripts
    attached_volumes, buckets, checkpoints, protocol
    mount_namespace, outputs, s3, serialization
    system, config                               facts and functions of the machine; the agent's configuration
    quick_dataclass                              `dataclass` for all of flowlite, which takes less of an import
"""
