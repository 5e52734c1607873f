"""What is recorded about a task: its states, the paths of its files, its log, and the wording of its end.

`lifecycle.py` has the table of states. A transition that is not in it cannot happen.
"""
