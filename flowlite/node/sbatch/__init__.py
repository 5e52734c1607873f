"""Batch scripts of Slurm on any provider, with `srun` and `scontrol` of our own.

Every rank is a worker that waits; rank 0's also runs the script. `srun` asks the router in the leader's agent, which
places tasks (layout.py) and relays their output. Tasks are children in the worker's process group, so whatever stops
a worker stops them, and their output is that of a rank.
"""
