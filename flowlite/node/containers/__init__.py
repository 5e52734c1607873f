"""Runs the fork server, and so every worker, in a container of docker or podman. The agent stays outside.

`container.py` starts the container, with the fork server as its only program: reaper and workers are forked from
that. The container ends with the fork server, so nothing is left of it even if processes are killed at once. It
shares the node's processes, network and IPC, so process ids, signals, stacks and the ranks' connections work as
without one. Its settings are in a file that only its user can read. `engines.py` finds out which of docker and podman
works here, and has their command lines, as pure functions.

A step of a Slurm job is in the container as a whole, the agent too: then nothing of this room is used
(`provider_adapters/slurm/containers.py`).

Imports `python_env`, `system` and `config`; `inspect` and `agent` use it. Start with `container.py`.
"""
