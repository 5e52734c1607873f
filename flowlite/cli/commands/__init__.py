"""The commands of `flow`, one module for each group. `flowlite.cli.COMMANDS` maps commands to modules.

Each module begins with the command in its docstring, and has a function, or a group of typer, of the command's name.
Only the module of the command that was given is imported, and what is heavy is imported by the function that needs it.

`run.py` is what most users see. `status.py`, `logs.py`, `top.py` and `doctor.py` show a task, `tasks.py` cancels,
resumes and fetches, `upkeep.py` cleans up. `dev/` and `queue/` are commands of several modules.

Options of tasks are in `cli/task_options.py`, not here: they are declared once for all commands that start tasks.
"""
