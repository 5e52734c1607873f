"""Connections to nodes that are reached through a command, such as `srun`.

One command per node and process is kept open, because each further `srun` would be a step of the job. On its far end
runs the mux server (`node/helper/mux_server.py`). `channel.py` starts the command and carries many requests over its
pipe, `stream.py` is one of these requests, with flow control in both directions, and `pool.py` has the channels of
this process. `connection.py` fulfils the contract of `connect/base.py` with them; `files.py`, `tcp.py` and
`carried.py` are files, TCP streams and pipes over a channel. `errors.py` explains what `srun` printed last.

A step connection may be the base of others, so one SSH session to the login node is enough for all nodes of a
cluster.

Imports `connect`, `errors` and the framing (`node/protocol/mux_framing.py`). It knows nothing of jobs: that a prefix
is `srun --overlap …` is said by `provider_adapters/slurm/nodes.py`. Start with `connection.py`.
"""

from __future__ import annotations

from flowlite.connect.step.connection import StepConnection
from flowlite.connect.step.errors import JobGone, srun_lost

__all__ = ["JobGone", "StepConnection", "srun_lost"]
