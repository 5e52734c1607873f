"""Commands that inspect a running node: for `flow ssh`, `flow doctor`, `flow top`, and bandwidth between nodes.

Each is a process of its own that a client starts on the node, reads the files of the newest attempt, prints, and
ends. None of them talks to the agent, so they work when it hangs.

    exec.py            `flow ssh`: a command in the environment of the node's first worker, with its volumes
    rank_processes.py  which processes are the ranks: workers, or what a launcher below a worker started
    look.py            `flow doctor`: the stacks of the workers, and the state of the node, as JSON
    disks.py           the room on the node's disks, also where one hangs
    metrics.py         `flow top`: counters, which the client reads twice
    netbench.py        `flow doctor`: round trip and bandwidth between two nodes, which prove a token to each other
    torch_probe.py     whether a worker has loaded torch, and is connected to the other ranks

What the figures mean is decided elsewhere, in `flowlite/diagnosis`. Imports `config`, `system`, `worker`,
`mount_namespace`, `containers` (for a task in an image), `leader_run` (for the ranks of MPI) and `protocol` (for the
proof). Start with `look.py`.
"""
