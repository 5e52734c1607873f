"""The supervisor's process: how it starts, leads its task, and ends.

A client starts it before it imports what it needs to plan and bundle the call; it imports meanwhile and then reads the
id of its task from a pipe. A client that submits nothing, or ends, ends it (`supervisor_process.py`).

Commands and SDK calls restart a supervisor when its owner is provably dead or its lease has expired (`launch.py`). A
task that has no machines and has had no supervisor for 10 minutes is not restarted: it needs `flow resume`
(`resuming.py`). `spares.py` keeps the spare machines of a task ready while an attempt runs. After its task, a
supervisor may wait a while for the next one (`standby.py`). A supervisor whose store stays damaged ends its nodes and
exits (`store_loss.py`).
"""
