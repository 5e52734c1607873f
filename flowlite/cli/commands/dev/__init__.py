"""`flow dev`: a node to work on, with VS Code, Jupyter or a shell.

A node to work on is a task like any other, whose command waits; it has its caps, and ends with `flow cancel`.
`command.py` starts it, or finds the one with that name, and then opens the editor, Jupyter or a shell. `ssh_entry.py`
writes the entry `Host flow-NAME` below `FLOW_HOME/dev/NAME`, which `~/.ssh/config` may include, with the host key
that flowlite knows. `listener.py` looks whose process listens on a port before the user's browser is sent there,
since another user of the machine may have taken it.

Imports `api`, `cli`, `connect`, `spec` and `settings`. Start with `command.py`.
"""
