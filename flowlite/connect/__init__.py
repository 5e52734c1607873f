"""Reaching one node. `base.py` is the contract; `local.py` is this machine, `ssh/` a host, `step/` a node of a Slurm
job.

Nobody but us decides how much memory an answer takes (bounded.py): 16 MiB for the output of a command, 2 MiB for a
JSON document. More is given up with `AnswerTooLong`. What is large on purpose is streamed. `programs.py` starts
flowlite's program on a node once its directory and its content were checked.
"""
