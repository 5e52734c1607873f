"""The configuration of an agent (`agent.json`), the paths of an attempt, ranks, and time limits that several sides use.

`ranks.py` is the only place where ranks are assigned. `python_command.py` reads command lines of Python.
`secret_files.py` knows which files of a node contain secrets.
"""
