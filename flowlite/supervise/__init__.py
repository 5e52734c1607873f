"""Leads one task, from the intent to launch until nothing of it is left at the provider.

Each task has a supervisor: a detached process on the submitting machine. It holds the task's lease in the store (30
s, renewed every 10 s). Every write carries the lease's fencing token, so a supervisor that was suspended cannot write
after another has taken over. The main loop decides only from the state in the store, so a supervisor that takes over
after a kill does the same as one that was never interrupted. To stay small, the process imports neither pydantic nor
typer nor rich, and asyncio without ssl.

    process                the supervisor's process: main loop, lease, start, standby for the next task
    attempt, provision.py  one start of the gang; launching nodes and giving them back
    queue                  whose turn it is
    gang_size.py, gang_growth.py    how many nodes an attempt lacks; how a gang grows while it runs
    failover.py            which place is asked next
    money                  cost, caps and prices
    threads.py, waiting.py threads for blocking calls; waits for an event or something else
    record                 task states, paths of a task's files, wording
    cleanup, background.py what crashed processes left; background work of commands

The size of a gang is that of its attempt, the length of its roster; the plan bounds it. `Provisioner.complete` first
launches the nodes that are needed (`LaunchIntent.least`), then, as another launch with a token of its own, those that
the gang would take as well. That launch is withdrawn when its time is over, so that no machine comes later.
`ranks.succeed` makes the next roster, and spare machines fill vacant ranks first. Start with `process/supervisor.py`.
"""
