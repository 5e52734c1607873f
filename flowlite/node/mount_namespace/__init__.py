"""What the workers of one node see and nobody else: volumes and buckets at their paths, and the gang's host names.

Where the kernel allows it, a reaper enters a mount namespace of its own and mounts there; all of it is gone with the
last process. As root it also shows a hosts file with the gang's addresses (hosts_file.py): torch asks for the name of
every peer, and a name server that does not answer costs 5 s each time. Elsewhere a symbolic link is made where the
path is free, and a volume is refused, with the reason, where it is not. Nothing is ever deleted through a mount
(unmount.py).
"""
