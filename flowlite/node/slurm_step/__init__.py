"""The step daemon: the one process of a Slurm job's step on a node.

Agents and workers are its children, so they have the step's cgroup and GPUs, and end with it. It renews the node's
lease, knows the job's deadline, and turns Slurm's signals into notices of preemption. Its messages name it `anchor`.
"""
