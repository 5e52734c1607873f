"""Files of a volume, for `flow volumes put`, `get`, `ls` and `rm`.

`program.py` carries out one request: it lists, reads, writes or removes files below one root, and no path leads out
of it. The program is sent as text with each request (`connect/programs.py`), since a volume is reached without a
task, and so without an agent. It therefore imports the standard library only, and nothing of flowlite. A transfer that
broke off continues where it was.

The client's side is `api/volume_files/on_machine.py`; buckets are reached from the submitting machine
(`api/volume_files/in_bucket.py`).
"""
