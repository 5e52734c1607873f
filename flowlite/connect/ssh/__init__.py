"""Hosts over SSH: one transport for each host and process, shared by all connections to it.

`link.py` holds the transport, `login.py` authenticates, `host_keys.py` compares keys before anything is said, jump
hosts included. `courier.py` is the client of a process on the host that replaces many small commands. `half_open.py`
tells a host of connections that ended while it could not be reached. `library.py` imports paramiko without what is
not needed. Each error says how long it makes sense to wait for it (`NodeUnreachable.patience`).
"""
