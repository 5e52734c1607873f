"""The Python environment of workers: found on the node, or made with uv under a lock.

`environments.py` takes the request of a task (`AgentConfig.python_spec`): a version, requirements, or neither. If a
Python of the node will do, it is used as it is. Otherwise an environment is made, once for all tasks of a host, in a
directory that is named by the hash of its inputs; the mark that it is complete is written last. `interpreters.py`
finds the Pythons of a machine. `uv.py` runs uv, which the client has sent if the node has none
(`supervise/attempt/bring_python.py`).

The subcommand `pythons` answers, before an agent starts, whether the Python is there. What a user may ask for is
checked in `flowlite/python_request.py`.

Imports `worker`, `system` and `config`. Start with `environments.py`.
"""
