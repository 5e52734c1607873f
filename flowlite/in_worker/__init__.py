"""The parts of flowlite that workers use: `should_stop()`, and the decorator on nodes without flowlite.

    should_stop.py      the worker's half of `should_stop()`; the agent's is `node/preemption/shared_page.py`
    on_node.py          the modules that are carried to nodes (`CARRIED`), placeholders for other public names, and the
                        refusal to start tasks from a worker
    hidden_modules.py   a user's file that hides a module of the standard library

A node need not have flowlite: the modules of `CARRIED` travel with the node's program and come last in `sys.path`.
No other package is there, so these modules import only one another and the standard library. A new import at the top
of one of them breaks nodes, and not this machine.

Imports `errors`. Start with `on_node.py`.
"""
