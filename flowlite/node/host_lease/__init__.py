"""The lease of a host: one task at a time, across all users of the host.

The lock is a name in the abstract namespace of Unix sockets. The kernel gives it to one process of the host at a
time, across all users, and frees it when that process is gone. That process is the holder (`lease_holder.py`). It
answers only its own user. An answer from another user's process is never read (`requests.py`), and no answer decides
where files are written or which command is run.

Every two seconds the holder looks for a running agent of the task, and for files that are being written for it. After
`ttl` seconds without either, it ends the lease: it kills every process that has the lease's id in its environment,
and all descendants. A second process, the guard, holds the same socket and does the same if the holder is killed.
Only the host's monotonic clock is used.

`client.py` is the subcommand `lease`, `cleanup.py` removes what a task leaves, `secret_files.py` its secrets,
`unused_files.py` what no task has used for long, and `kept_machine.py` ends a task on a rented machine that is kept.
The side of the submitting machine is `provider_adapters/ssh/leases.py`. Start with `lease_holder.py`.
"""
