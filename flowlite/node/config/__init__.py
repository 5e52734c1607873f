"""What an agent is told (`agent.json`), the paths of an attempt, ranks, and times that several sides count on.

`ranks.py` is the one place where ranks are made. `secret_files.py` knows which files of a node hold secrets.
"""
