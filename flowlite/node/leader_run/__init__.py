"""Gangs that node 0 leads: `distributed_mode="ray"` and `"mpi"`.

The call runs once, on node 0. The worker of every other node runs an exec server, which starts the commands that node
0 asks for and ends when node 0's call ends. A relay beside the leader's agent connects callers and exec servers. Each
connection proves the task's secret, inside TLS where the rendezvous is encrypted. Programs use it as `ssh`, a shim on
the task's PATH: `mpirun` uses it as its remote shell, and connections to other hosts are passed to the machine's own
ssh. The modes differ only in the preparation: a Ray cluster is started, or a hostfile is written and Horovod's store
served.

    agent_side.py, relay.py                      in the leader's agent and beside it
    processes.py, exec_server.py                 on every node
    remote_exec.py, ssh_shim.py                  a command of one node on another
    mpi.py, mpi_rank.py, horovod.py, ray_cluster.py    the modes

Start with `processes.py`.
"""
