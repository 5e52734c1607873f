"""The supervisor's process: how it starts, leads its task, and ends.

Commands and SDK calls restart a supervisor when its owner is provably dead or its lease has expired (`launch.py`). A
task that has no machines and has had no supervisor for 10 minutes is not restarted: it needs `flow resume`
(`resuming.py`). After its task, a supervisor may wait a while for the next one (`standby.py`). A supervisor whose
store stays damaged ends its nodes and exits (`store_loss.py`).
"""
