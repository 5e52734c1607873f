"""One task from the intent to launch to the proof that nothing is left.

A supervisor is one detached process for each task. It holds the task's lease in the store (30 s, renewed every 10 s);
every write carries the lease's fencing token, so a supervisor that slept cannot write after another has taken over.
Its main loop looks at nothing but the state in the store, hence one that takes over after a kill does what one that
was never interrupted would do. It imports neither pydantic nor typer nor rich, and asyncio without ssl, to stay
small.

    cleanup                what crashes have left; background work of commands
    process                the process: its loop, its lease, its start, the standby for the next task
    attempt, provision.py  one start of the gang; nodes launched and given back
    money, threads.py      cost, caps and prices; calls that block
    record                 states, journal paths, wording
"""
