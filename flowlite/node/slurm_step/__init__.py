"""The step daemon: the one process of a Slurm job's step on a node.

`daemon.py` is the process: it answers lines of JSON on a socket and is the parent of all that runs for the task.
`notices.py` has its time limits, and says what a signal of Slurm's means; agents read the notice
(`preemption/notices.py`, kind "slurm"). Its client on the node is `helper/daemon_client.py`. The batch script that
starts it is made in `provider_adapters/slurm/script.py`.

Imports `helper`, `host_lease` (to end what a task leaves), `system` and `config`. Start with `daemon.py`: its first
lines list the requests.
"""
