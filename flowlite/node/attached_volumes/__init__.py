"""Volumes that the machine mounts itself: NFS, EFS, Lustre and attached disks.

`sidecar.py` mounts at the paths of the provider's `NodeSettings` and unmounts when the agent's pipe ends, for any
reason. After that all data is on the volume, and a disk can be attached to another machine. `mount_commands.py` has
the command lines, `run.py` runs such programs and keeps their words for the error. `disks.py` finds the device of an
attached disk, and formats it only if two programs and the disk's own bytes show that it is blank.

They are mounted for the whole machine, in a directory of flowlite's, and unmounted at the end of every attempt. The
path that the user chose is shown to workers by `mount_namespace/`.

Imports `sidecar`, `mount_namespace`, `system` and `config`. Start with `sidecar.py`. Which volumes exist, and which
machine gets them, is the adapter's business (for example `provider_adapters/aws/storage`).
"""
