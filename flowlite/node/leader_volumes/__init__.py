"""Shared volumes without a file server: the leader serves a directory of its disk to the other nodes.

`sftp-server` runs shut into that directory by pivot_root (confined_sftp.py). Each other node mounts it with `sshfs`
over a stream that proves the task's secret and is encrypted; there are no SSH keys between nodes.
"""
