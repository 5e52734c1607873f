"""Buckets mounted at a path: a sidecar runs mount-s3 or rclone in a private directory and watches the mounts.

`agent_side.py` is what the agent holds: it starts the sidecar and passes on what it reports. `mount_sidecar.py`
mounts, watches and unmounts; it holds a pipe of the agent and ends with it. As root it has a mount namespace of its
own, so that no mount can be left on the machine. `fuse_programs.py` has the programs, best first, with their command
lines: that mounts are read-only is said there, to each program, and once more in `agent_side.py`, where the workers'
view is made.

The option `mounts=` is this room; volumes are others. Credentials are only in `storage.json` (0600) and in the
sidecar, never on a command line or in an environment. Whether the bucket can be read at all is tried before
(`s3/readable.py`).

Imports `s3`, `sidecar`, `mount_namespace`, `system` and `config`. Start with `mount_sidecar.py`, or, if a bucket can
do what it should not, with `fuse_programs.py`.
"""
