"""Cleans up after crashes, at every `flow` command: machines of no live task, tasks without a supervisor.

`reconcile.py` compares what providers list with what the store knows. Every account is searched: that of the current
settings, those of unfinished tasks, and those in the adapters' own records. Instances of a task that has ended are
ended; those with this FLOW_HOME's tag whose task is not in the store are listed, and ended only on request. `flow gc`
launches nothing. `background_gc.py` does the same in a detached process, at most every ten minutes, after any
command.

`warm_nodes.py` lists nodes that are kept warm, and ends them early. `store_copy.py` and `store_restore.py` copy the
store once a day, check it, and restore a copy.

A machine that remains although its task has ended is found here, or was never listed (the adapter's `listing.py`).
Imports `process`, `attempt`, `money` and `record`, and `state` and `provider`. Start with `reconcile.py`.
"""
