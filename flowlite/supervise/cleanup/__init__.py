"""What crashes have left, set right by every `flow` command: machines of no live task, tasks without a supervisor.

What is left is looked for account by account: that of whoever asks, those of unfinished tasks, and those in the
adapters' own records. `flow gc` launches nothing. What bears this FLOW_HOME's tag and belongs to a task that the
store does not know is shown, and ended only when asked. `store_restore.py` checks the store and brings back a copy.
"""
