"""Disk use of ended tasks: removing them, pruning their inputs and logs, and measuring their size.

    pruning.py    removes inputs and logs by age and size, once a day in a detached process that any command may start;
                  also contents of projects that no task needs
    removal.py    removes one ended task with all its files (`flow rm`), or says why it is kept
    usage.py      what FLOW_HOME is filled with (`flow store usage`)

Nothing is removed of a task that has not ended, whose nodes are kept warm, or that has files on its nodes. Results,
history and rows outlive pruning. Machines are not this room's business: `supervise/cleanup` ends them.

Imports `api` (a `Session`, and what ended tasks have left on nodes), `state`, `settings`, `bundle`,
`supervise/background.py` and, from `node`, what unmounts. Start with `removal.py`.
"""
