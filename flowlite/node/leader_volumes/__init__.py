"""Shared volumes without a file server: the leader serves a directory of its disk to the other nodes.

`server.py` is a sidecar of the leader's agent; for each connection it starts a `sftp-server` that is confined to the
volume's directory by pivot_root (`confined_sftp.py`). `sshfs_sidecar.py` is the sidecar of every other node: it
mounts each volume with `sshfs`, over an encrypted stream that proves the task's secret. There are no SSH keys between
nodes. `agent_side.py` starts whichever a node needs.

Used by pools of hosts without a shared directory (`provider_adapters/ssh/volume_hosts.py` remembers on whose disk a
volume is). Where a file system is shared already, nothing of this room runs.

Imports `protocol` (the authenticated stream), `sidecar`, `mount_namespace`, `system` and `config`. Start with
`server.py`.
"""
