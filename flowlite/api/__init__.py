"""The public API: `FlowApp`, `Function`, `Flow`, `Task`, and what they need on the submitting machine.

`app.py` has the decorator, and `remote.py` runs its calls on gangs. `submission.py` turns a configuration into a task.
`task.py` reads the store and the files of a task and never talks to nodes; it polls SQLite's `data_version` every 10 to
50 ms, which costs one system call. Results are opened only in `outcomes.py`, whose callers must say whether pickles may
be loaded. `adapters.py` creates adapters with the current settings; adapters for an existing task use the task's frozen
settings (`provider_of_task`).
"""
