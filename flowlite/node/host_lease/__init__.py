"""The lease of a host: one task at a time, whoever asks.

The lock is a name in the abstract namespace of Unix sockets: the kernel gives it to one process, for all users of the
host, and takes it back when that process is gone. That process is the holder (holder.py). It answers its own user
only; an answer of another user's process is never read (asking.py), and nothing of an answer says where files go or
what is run.

The holder looks every two seconds for an agent of the task that runs, or files that are being written for it. Without
one for `ttl` seconds it ends the lease: every process that bears the lease's id in its environment is killed, with
all below it. A second process, the guard, holds the same socket and does the same if somebody kills the holder. Only
the host's monotonic clock is used.
"""
