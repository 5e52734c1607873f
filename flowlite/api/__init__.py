"""The public API: `FlowApp`, `Function`, `Flow`, `Task`, and what they need on the submitting machine.

`app.py` has the decorator, and `remote.py` runs its calls on gangs. `submission.py` turns a configuration into a
task: what travels of the project is listed and checked before anything is recorded, and the process of the supervisor
is started before the rest is imported, so that both import side by side. `task.py` reads the store and the files of a
task and never talks to nodes; it polls SQLite's `data_version` every 10 to 50 ms, which costs one system call.
Results are opened only in `outcomes.py`, whose callers must say whether pickles may be loaded. `failures.py` makes
the exception. `adapters.py` creates adapters with the current settings; adapters for an existing task use the task's
frozen settings (`provider_of_task`).

    candidates/      places where a task may run, planned and ranked
    sweeps/          `function.map`
    volume_files/    the files of volumes and buckets

`node_access.py`, `node_files.py` and `late_results.py` are the modules that reach nodes. Imports `display` and the
rooms below it. Start with `remote.py`, then `submission.py`.
"""
