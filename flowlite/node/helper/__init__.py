"""Programs on a node that work for one client over one channel: they put files, start agents, and run commands.

The courier (`courier.py`) is used over SSH. The first of several small requests starts it, on a channel that stays
open. It forks agents, which look from outside as if they had been started directly. It ends with its channel, and
after 45 s without a heartbeat from its client. Nothing depends on it: if it is busy or gone, the client runs a
command of its own. Its client is `connect/ssh/courier.py`; on this machine, where it only forks agents, it is
`connect/local_courier.py`.

The mux server (`mux_server.py`) is used for nodes that are reached through one command, such as
`srun --overlap`. It carries many streams over one pipe, since each further `srun` would be a step of the job. Each
request is a child process (`jobs.py`, `files.py`). Its client is `connect/step`; the framing is
`protocol/mux_framing.py`. With `--daemon` it renews the lease of the step daemon (`daemon_client.py`).

They are two programs since they make opposite choices, and no provider uses both. The courier handles one request at
a time, in its own process; whoever finds it busy uses a command. The mux server is the only way to its node, so a
request that hangs must not hold up the others. Each is therefore forked, which takes more than ten times as much
processor time for a small file.

Imports `agent` (to fork one), `host_lease`, `protocol` and `system`. Start with `courier.py` or `mux_server.py`.
"""
