"""Leads one task, from the intent to launch until nothing of it is left at the provider.

Each task has a supervisor: a detached process on the submitting machine. It holds the task's lease in the store (30 s,
renewed every 10 s). Every write carries the lease's fencing token, so a supervisor that was suspended cannot write
after another has taken over. The main loop decides only from the state in the store, so a supervisor that takes over
after a kill does the same as one that was never interrupted. To stay small, the process imports neither pydantic nor
typer nor rich, and asyncio without ssl.

    process                the supervisor's process: main loop, lease, start, standby for the next task
    attempt, provision.py  one start of the gang; launching nodes and giving them back
    gang_size.py           how many nodes an attempt lacks, and how long it waits for them
    money, threads.py      cost, caps and prices; threads for blocking calls
    record                 task states, paths of a task's files, wording
    cleanup                what crashed processes left; background work of commands
"""
