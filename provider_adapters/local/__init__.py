"""The provider `local`: nodes are directories and process groups on this machine. It needs no account, GPU or root.

`provider.py` is the whole adapter: a node is `tasks/ID/nodes/INSTANCE` below FLOW_HOME, and the processes that have
its id in their environment. `planning.py` says what fits this machine. `admission.py` limits how many tasks run at
once, and gives each GPU to one task at a time, also across FLOW_HOMEs of one user; what a dead task still holds is
reclaimed. Both keep their entries in a `LockedRecord` (`locked_record.py`). `warming.py` starts the fork
server that the nodes of a task share, and keeps it with `keep_warm`. The agents of a task are forked from a courier
(`connect/local_courier.py`), which is started before its supervisor knows of the task.

Which GPUs a worker sees is settled in two steps: `gpus.py` here lends them, `node/worker/environment.py` sets the
variable. Start with `provider.py`.
"""

from provider_adapters.local.provider import LocalProvider

__all__ = ["LocalProvider"]
