"""Shows a task while a user waits for it: its id, its phases, the output of its workers, its end.

`TaskDisplay` is the only renderer, used by `flow run`, `.remote()`, `task.wait()` and awaited tasks. `Screen` keeps the
lines of several displays apart.
"""
