"""Volumes that the machine mounts itself: NFS, EFS, Lustre and attached disks.

They are mounted for the whole machine in a directory of flowlite's, and unmounted at the end of every attempt. A disk
is formatted only if it is blank (`disks.py`).
"""
