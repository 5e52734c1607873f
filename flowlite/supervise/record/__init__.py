"""What is written down of a task: its states, its paths, its log, and how an end reads.

`lifecycle.py` is the one table of states; what it does not list cannot happen.
"""
