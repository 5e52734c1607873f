"""What is recorded about a task: its states, the paths of its files, its log, and the wording of its end.

`lifecycle.py` has the one table of states: which event is possible in which state, and what follows. A transition
that is not in it cannot happen, and a state machine of hypothesis tries to break it.

`paths.py` has every file of a task below `FLOW_HOME/tasks/ID`. `task_view.py` reads what the supervisor needs of
configuration, plan and call, without pydantic. `wording.py` says how an attempt or a worker ended, from values.
`log.py` is the supervisor's log. `process_identity.py` tells a process from a later one with its id.

Imports `state`, `provider`, `settings` and `output`. Start with `lifecycle.py`.
"""
