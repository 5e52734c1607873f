"""The provider `slurm`: nodes are those of one job that `sbatch` was given.

A task is one job with one `srun` step. The one process of that step on a node is the step daemon (`node/slurm_step`);
agents and workers are its children. The batch script is a pure function (script.py); flowlite's program travels in it
until a probe has proved that the shared directory is one. Slurm's commands run through `SlurmLogin`, here or over
SSH, in an environment of their own. A node is reached through one `srun --overlap` (`connect/step`).

Asking is shared: all supervisors of a FLOW_HOME use one answer of `squeue`, no older than 0.3, 2 or 10 s
(queries/queue.py). A job that is missing is gone after three answers and the word of `scontrol` or `sacct`. Each
submission is in the ledger first and has a comment by which it is found again; duplicates are cancelled. A sweep is
one job array (arrays.py).

Slurm's warning goes to the batch script, from there to the step daemons, and as notice of preemption to the agents. A
requeued job is listed as "returning" and taken over by the task's next launch. Ending is `scancel --signal=HUP`, so
that the job is COMPLETED, and plain `scancel` after 5 s. When one node fails, Slurm ends the others with SIGTERM,
which may be heard first: workers that a signal ended are reported as what followed, and the node that failed as the
cause.
"""

from provider_adapters.slurm.provider import SlurmProvider

__all__ = ["SlurmProvider"]
