"""Files of a volume, for `flow volumes put`, `get`, `ls` and `rm`.

The program is sent as text with each request (`connect/programs.py`), since a volume is reached without a task.
"""
