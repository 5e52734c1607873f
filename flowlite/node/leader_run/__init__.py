"""Gangs that node 0 leads: `distributed_mode="ray"` and `"mpi"`.

The call runs once, on node 0. The worker of every other node holds an exec server, which starts what node 0 asks for
and ends with node 0's call. A relay beside the leader's agent connects callers and exec servers; each connection
proves the task's secret, inside TLS where the rendezvous is. Programs reach it as `ssh`, a shim on the task's PATH:
`mpirun` takes it for its remote shell, and other hosts are left to the machine's own. What happens before the call is
all that the modes differ in: a Ray cluster is made, or a hostfile is written and Horovod's store served.
"""
