"""The provider `slurm`: nodes are the nodes of one job, submitted with `sbatch`.

A task is one job with one `srun` step. The single process of that step on a node is the step daemon
(`node/slurm_step`); agents and workers are its children. The batch script is rendered by a pure function (`script.py`).
It carries flowlite's program until a probe has proved that the shared directory is really shared. Slurm's commands run
through `SlurmLogin`, locally or over SSH, in an environment of their own. A node is reached through one `srun
--overlap` (`connect/step`).

Queries are shared: all supervisors of a FLOW_HOME use one answer of `squeue`, no older than 0.3, 2 or 10 s
(`queries/queue.py`). A missing job counts as gone after three answers without it and the confirmation of `scontrol` or
`sacct`. Each submission is recorded in the ledger first and has a comment by which it is found again; duplicates are
cancelled. A sweep is one job array (`arrays.py`).

Slurm's warning signal reaches the batch script, which passes it to the step daemons; the agents receive it as a
preemption notice. A requeued job is listed as "returning" and taken over by the task's next launch. A job is ended with
`scancel --signal=HUP`, so that its state is COMPLETED, and with plain `scancel` after 5 s. When one node fails, Slurm
ends the others with SIGTERM, which may be noticed first: workers that were ended by a signal are reported as a
consequence, and the node that failed as the cause.
"""

from provider_adapters.slurm.provider import SlurmProvider

__all__ = ["SlurmProvider"]
