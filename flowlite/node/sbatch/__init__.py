"""Runs Slurm batch scripts on any provider, with flowlite's own `srun` and `scontrol`.

The worker of every rank waits for tasks; the worker of rank 0 also runs the script. `srun` asks the router in the
leader's agent, which assigns tasks to workers (`layout.py`) and relays their output. Tasks are children in the worker's
process group, so stopping a worker stops them too, and their output is that of a rank.
"""
