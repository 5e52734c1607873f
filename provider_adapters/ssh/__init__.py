"""The provider `ssh`: pools of hosts that the user can log in to, each leased to one task at a time.

Leases are in `node/host_lease`. The client takes the hosts it needs in parallel, in the order of the pool, and releases
all of them if they do not suffice; a waiting launch tries again at random intervals. The hosts to ask are written to
`FLOW_HOME/ssh/tasks/ID.json` before they are asked, and the same token gets the same lease, so a launch that was killed
at any point is found again. The facts of a host (Pythons, GPUs, addresses) are collected in one round trip and cached
until the host reboots. When a host is leased, it first tests that the task's directory is writable.

Directories of a host (`node_dir`, 0700):

    blobs/<sha256>        the node's program, bundles, sources, uv: all content named by its hash
    envs/<hash>/          Python environments
    tasks/<instance>/     the node home of one task; removed when the lease is released
    volumes/<name>/       volumes of a pool without shared_dir, on the leader's host

Content that was not used for 14 days is removed when a lease ends.
"""

from provider_adapters.ssh.provider import SshProvider

__all__ = ["SshProvider"]
