"""The supervisor's process: how it starts, leads its task, and ends.

Commands and SDK calls start a supervisor again when its owner is provably dead or the lease has lapsed (launch.py). A
task without machines whose supervisor has been gone for 10 minutes gets none by itself: it needs `flow resume`
(resuming.py). After a task a supervisor waits a while for the next one (standby.py). One whose store stays damaged
ends its nodes and itself (store_loss.py).
"""
