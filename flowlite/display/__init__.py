"""Shows a task while a user waits for it: its id, its phases, the output of its workers, its end.

`TaskDisplay` is the only renderer, used by `flow run`, `.remote()`, `task.wait()` and awaited tasks. It never waits
itself: those who wait call `advance`, which writes what is new to a `Screen`. A screen has one lock and one last row,
so tasks that are shown from several threads write whole lines, and a progress bar is removed before a line is written.
Commands write workers' lines to standard output; programs write everything to standard error. A program has one display
for each task, so waiting again continues where it was.

In a notebook, `NotebookOutput` takes the place of `Screen`, with the same methods: one output of a cell, updated in
place. `SweepDisplay` shows the tasks of a `map`, and `summaries.py` what is the value of a cell.

One thread of the process watches all tasks that are awaited in event loops (`api/async_wait.py`). It exists only
while there are any, calls the same `advance`, and tells the loop when a task is final. A cancelled await takes its
task off the thread's list, and nothing is left that could hold the program up.
"""
