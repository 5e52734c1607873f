"""Connections to nodes.

`base.py` is the contract, `local.py` the connection to this machine, `ssh/` to a host over SSH, and `step/` to a node
of a Slurm job. `programs.py` starts flowlite's program on a node after it has checked the program's directory and
content.

What a node sends is bounded (`bounded.py`): 4 MiB for the output of a command, 2 MiB for a JSON document. Anything
longer raises `AnswerTooLong`. Large transfers are streamed.
"""
