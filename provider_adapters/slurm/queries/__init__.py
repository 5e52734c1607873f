"""Questions to Slurm, and what the answers mean.

`queue.py` asks `squeue` for all jobs of a FLOW_HOME at once: all supervisors share an answer while it is fresh, so
that many tasks are one question. A job that an answer lacks is not gone for that; only several answers without it,
and what Slurm says of the job itself, show that. `partitions.py` caches `sinfo` for a minute. `parse.py` reads the
output of `squeue`, `scontrol show`, `sacct` and `sinfo`, as pure functions. `state_words.py` says states and reasons
in words.

Nothing here changes a job. Imports `slurm/login.py`, which runs the commands, and `flowlite`'s contract. Start with
`queue.py`.
"""
