"""Checks of a node before GO.

Each node checks that it reaches other nodes, and not only the leader (`connectivity.py`). It listens on a port of its
own; each connection authenticates with the task's secret and carries 64 kB in both directions. In gangs of up to 16
nodes all pairs are checked, in larger ones each node checks as many others as the logarithm of their number. A
failure that may be an outage is retried until the join timeout. A path that never worked, although messages of its
node arrive, is reported as a firewall (`node/system/retrying.py` has this rule for all checks). `master_port.py`
chooses MASTER_PORT and listens on it. `gpu_health.py` reads what the driver says of the GPUs, `speed.py` multiplies
matrices; the leader compares the figures (`rendezvous/outliers.py`). `network_interfaces.py` compares the variables of
NCCL and Gloo with the machine's interfaces. `readiness.py` collects what a node reports before GO.

Imports `inspect`, `python_env`, `rendezvous`, `protocol`, `system` and `config`. Start with `readiness.py`.
"""
