"""Hosts reached by SSH as a provider: pools of machines you can log in to, leased to one task at a time.

The lease is `node/host_lease`. The client takes what it needs in parallel, in the order of the pool, and gives all
back if that is not enough; those who wait look again at random moments. Whom it asks is written to
`FLOW_HOME/ssh/tasks/ID.json` before it asks, and the same token gets the same lease, so a launch that was killed
anywhere is found again. What a host is (Pythons, GPUs, addresses) is asked in one round trip and remembered until the
host boots again. A host that is taken is first made to write something where the task's files will be.

Directories of a host (`node_dir`, 0700):

    blobs/<sha256>        the node's program, bundles, sources, uv: whatever came by its hash
    envs/<hash>/          Python environments
    tasks/<instance>/     the node home of one task; removed when the lease is released
    volumes/<name>/       volumes of a pool without shared_dir, on the host that leads

What nobody has used for 14 days is removed when a lease ends.
"""

from provider_adapters.ssh.provider import SshProvider

__all__ = ["SshProvider"]
