"""Connections to nodes.

`base.py` is the contract, `local.py` the connection to this machine, `ssh/` to a host over SSH, and `step/` to a node
of a Slurm job. Agents of this machine are forked from its courier (`local_courier.py`), those of hosts from theirs.
`programs.py` starts flowlite's program on a node after it has checked the program's directory and content.
`pythons.py` and `uv.py` bring a Python to a node that has none that is new enough. `pipe.py`, `bridge.py` and
`forwarding.py` carry streams, `fetching.py` fetches files that appear only when they are whole.

What a node sends is bounded (`bounded.py`): 4 MiB for the output of a command, 2 MiB for a JSON document. Anything
longer raises `AnswerTooLong`. Large transfers are streamed. `bounded_botocore.py` does the same for AWS.

This room knows nothing of tasks. Imports `errors`, `settings`, `output` and rooms of `node`; adapters and `supervise`
use it. Start with `base.py`.
"""
