"""The store of all tasks: one SQLite file in WAL mode for each FLOW_HOME.

`store.py` is what everybody uses, `records.py` its rows as values, `database.py` the file. Every write is one BEGIN
IMMEDIATE transaction, on disk before it returns. `user_version` is the version of the schema. Every row is validated
when it is read (`rows.py`): the client skips damaged rows and names them, a supervisor gets an error. Copies are made
by SQLite's own backup (`backups.py`). A snapshot of a task's rows is kept beside its files (`snapshots.py`). The
file's inode is checked before each use, since SQLite keeps working on a file that was removed. In a directory that
several machines have, one of them uses it at a time (`one_machine.py`).

`clock.py` is the clock for leases, limits, money and ages: the machine's time since boot plus an offset. Its values
look like Unix time, but do not change when the wall clock is set.

Imports `provider` (its values), `settings`, `errors` and rooms of `node`. Start with `store.py`.
"""
