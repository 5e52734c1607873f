"""`setup=`: commands that a node runs once before its workers start.

The commands run as workers of a reaper and a fork server of their own, which imports nothing and ends with them. So
volumes, stopping and leftover processes are handled as for any worker. The fork server of the workers starts only
after the commands have installed packages (a `.pth` file is read when Python starts). Their output is the stream
"setup" of the node's first rank. A completed setup is recorded in the node's directory, and on the machine for later
tasks on a warm node (`done.py`).

The agent calls it after the checks of the network (`agent/go_checks.py`), so that nobody waits for an installation on
nodes that cannot reach each other.

Imports `forkserver`, `worker`, `python_env`, `log_stream`, `system` and `config`. Start with `run.py`.
"""
