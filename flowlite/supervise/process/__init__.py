"""The supervisor's process: how it starts, leads its task, and ends.

A client starts it before it imports what it needs to plan and bundle the call; it imports meanwhile and then reads
the id of its task from a pipe. A client that submits nothing, or ends, ends it (`supervisor_process.py`). First of
all it has the adapter start what nodes will probably need (`early.py`).

Commands and SDK calls restart a supervisor when its owner is provably dead or its lease has expired (`launch.py`). A
task that has no machines and has had no supervisor for 10 minutes is not restarted: it needs `flow resume`
(`resuming.py`). One that fails after flowlite was upgraded becomes one of the new version (`code_on_disk.py`). After
its task, a supervisor may wait a while for the next one (`standby.py`). A supervisor whose store stays damaged ends
its nodes and exits (`store_loss.py`).

While an attempt runs, `spares.py` keeps the task's spare machines ready, and `growth.py` launches the nodes with
which a gang is to grow (rows in the states `spare` and `joining`, without a rank); `machines_without_rank.py` brings
both up.

A task with several places is "provisioning" until one of them has its nodes. A place is left in durable steps
(`supervise/failover.py`): an entry with the reason, the proof by the provider's listing that nothing is there and
nothing can come, and one transaction that makes another place the present one. The process then goes on with a new
`Supervisor` for the adapter of that place (`place_search.py`), exactly as one that takes the task over.

Imports the rooms of `supervise` below it. Start with `supervisor.py`; `main.py` is the entry point.
"""
