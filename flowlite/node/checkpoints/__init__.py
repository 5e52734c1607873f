"""Copies of a checkpoint directory, to another directory or a bucket, made during the run.

`agent_side.py` is what the agent holds, `sidecar.py` the process that copies, so that hashing and uploading never
block the agent. `tree.py` scans the directory and `stability.py` says which files have stopped changing, with the
help of `rename_watch.py`, which sees those that were renamed into their place; `copier.py` copies them as a set. The
manifest of a set is written last (`manifest.py`), so a set is either complete or absent. `targets.py` has the two
kinds of targets, a directory and a bucket. `restore.py` brings the newest complete set back before workers start, and
`state.py` keeps what is known of the directory from one attempt to the next.

At the end everything is copied once more: what is private to a node by that node, when its workers have ended; what
all share by node 0, when the workers of all nodes have.

Imports `s3`, `project_files` (the rule for links), `mount_namespace`, `sidecar`, `system` and `config`. Start with
`copier.py`; `stability.py` and `manifest.py` are pure.
"""
