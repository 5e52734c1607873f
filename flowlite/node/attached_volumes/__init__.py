"""Volumes that the machine mounts itself: NFS, EFS, Lustre and attached disks.

They are mounted for the whole machine at a place of ours, and unmounted at the end of every attempt. A disk is
formatted only when it is blank (disks.py).
"""
