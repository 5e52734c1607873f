"""The public API: `FlowApp`, `Function`, `Flow`, `Task`, and what they need on the submitting machine.

`app.py` and `remote.py` are what a program imports; `submission.py` makes a task of a configuration; `task.py` reads
the store and the files of a task, and never talks to nodes. It polls SQLite's `data_version` every 10 to 50 ms, which
costs one system call. `outcomes.py` is the one place that opens results, and cannot be made without the permission to
load pickles. `adapters.py` makes adapters with the settings of here and now; adapters of a task are made with the
task's frozen settings (`provider_of_task`).
"""
