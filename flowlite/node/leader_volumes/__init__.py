"""Shared volumes without a file server: the leader serves a directory of its disk to the other nodes.

`sftp-server` is confined to that directory by pivot_root (`confined_sftp.py`). Each other node mounts it with `sshfs`
over an encrypted stream that proves the task's secret; there are no SSH keys between nodes.
"""
