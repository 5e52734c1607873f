"""The files of volumes and buckets, for `flow volumes put`, `get`, `ls` and `rm`.

A provider says where a volume can be reached without a task (`Provider.volume_place`): in a directory of this
machine, or of a host. A volume that only a rented machine can mount is reached on a node of a running task that uses
it. Either way, each request is one command there (`node/volume_files/program.py`). Buckets are reached from here.

All transfers resume: files that are there already, with the same size and time, are not sent again, and a large file
continues where it broke off.

`storage.py` opens what the command line names, `on_machine.py` and `in_bucket.py` are the two kinds, and `files.py`
is what they have in common. Start with `storage.py`.
"""
