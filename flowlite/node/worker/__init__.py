"""The process of one rank: its environment, its call, and how it exits.

A worker has its own session and process group. It reads from /dev/null and writes unbuffered output to files. Its
environment is the one of `environment.py`, which has the only table of its variables. A command replaces the process,
but a script of Python runs in the forked process where it cannot tell the difference (`script.py`).
A function is loaded (its hash and Python version are checked first) and called, and its outcome is written to a file.
Then the exit handlers run, and the process exits without finalising the interpreter, which would take torch a second.
Ranks with a process group exit together, rank 0 last, since it holds the store that others may still need
(`torch_teardown.py`). Ranks connect to that store only when it listens (`torch_store.py`).

Trainers read the variables of launchers in different orders, and some then silently train alone. The environment
therefore drops the variables of other launchers. In manual mode `launcher_files.py` writes a hostfile and an Accelerate
configuration. In a job of Slurm, `scontrol_wrapper.py` keeps a command that has its job queued again from ending before
Slurm ends the job.
"""
