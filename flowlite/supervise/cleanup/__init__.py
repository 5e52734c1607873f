"""Cleans up after crashes, at every `flow` command: machines of no live task, tasks without a supervisor.

Every account is searched: that of the current settings, those of unfinished tasks, and those in the adapters' own
records. `flow gc` launches nothing. Instances with this FLOW_HOME's tag whose task is not in the store are listed, and
ended only on request. `store_restore.py` checks the store and restores a copy of it.
"""
