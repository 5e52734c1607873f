"""The step daemon: the one process of a Slurm job's step on a node.

Agents and workers are its children. They therefore have the step's cgroup and GPUs, and end with the step. The step
daemon renews the node's lease, keeps the job's deadline, and turns Slurm's signals into preemption notices.
"""
