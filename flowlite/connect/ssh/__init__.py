"""SSH connections to hosts, with one transport per host and process that all connections to the host share.

`link.py` holds the transport, `login.py` authenticates, and `host_keys.py` compares host keys, also of jump hosts,
before anything is sent. `courier.py` is the client of a process on the host that replaces many small commands.
`half_open.py` informs a host of connections that ended while it could not be reached, even after this process exited.
`library.py` imports paramiko without the parts that are not needed. Each error says how long it makes sense to retry
(`NodeUnreachable.patience`).
"""
