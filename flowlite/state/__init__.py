"""What is known of all tasks: one SQLite file in WAL mode for each FLOW_HOME.

Every write is one BEGIN IMMEDIATE transaction, on disk before it returns. `user_version` counts the schema. Every row
is compared with its record when it is read (rows.py): the client leaves damaged rows out and names them, a supervisor
gets an error. Copies are made by SQLite's own backup (backups.py), and a snapshot of a task's rows is kept beside its
files (snapshots.py). The file's inode is checked before each use, since a connection keeps working on a removed file.

`clock.py` is the time that leases, limits, money and ages are measured with: the machine's time since boot plus an
offset, a value like Unix time that no change of the wall clock moves.
"""
