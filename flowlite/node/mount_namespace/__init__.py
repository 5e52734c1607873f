"""The workers' own view of the file system: volumes and buckets at their paths, and the gang's host names.

Where the kernel allows it, a reaper enters a mount namespace of its own and mounts there. The mounts disappear with
the last process of the namespace. As root the reaper also installs a hosts file with the gang's addresses
(`hosts_file.py`). If nothing is at the path of a volume, the agent creates an empty directory there
(`mount_points.py`). Without mount namespaces a symbolic link is created if the path is free; otherwise the volume is
refused, with the reason. Nothing is ever deleted through a mount (`unmount.py`).

`worker_view.py` says what a worker shall see, `namespace.py` makes it so. What is mounted, and whether it can be
written to, is decided by the rooms that mount: `buckets`, `attached_volumes`, `leader_volumes`;
`mount_readiness.py` waits for their programs. `mounts.py` reads what is mounted.

Imports `system`. Start with `worker_view.py`.
"""
