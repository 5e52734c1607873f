"""SSH connections to hosts, with one transport per host and process that all connections to the host share.

`link.py` holds the transport: it connects on first use, notices a host that does not answer, and connects again.
`transport.py` opens one, also through jump hosts, `login.py` authenticates, and `host_keys.py` compares host keys,
also of jump hosts, before anything is sent. `courier.py` is the client of a process on the host that replaces many
small commands. `half_open.py` informs a host of connections that ended while it could not be reached, even after this
process exited. `tcp_segments.py` copes with networks that lose full packets. `library.py` imports paramiko without the
parts that are not needed. Each error says how long it makes sense to retry (`NodeUnreachable.patience`).

Shells and commands on the user's own terminal (`flow ssh`, `flow dev`) are not carried by this transport but by the
system's `ssh`, with a configuration that `system.py` writes: time limits, jump hosts and pinned keys of `flow ssh`
are there. `config.py` reads `~/.ssh/config`.

Imports `connect`, `errors` and `settings`. Start with `connection.py`.
"""
