"""What people see of a task while they wait for it: its id, its phases, the output of its workers, its end.

`TaskDisplay` is the one renderer. `flow run`, `.remote()`, `task.wait()` and awaited tasks all advance one; `Screen`
keeps what several of them write apart.
"""
