"""The queue of the tasks that wait for hosts or GPUs of a fixed set, and for the end of other tasks (`after=`).

The queue is what the store says: a task waits if it has not launched yet and its plan names slots (`Plan.slots`). Its
place follows from its priority and the time of its submission, so there is no list that could be lost or damaged, and
a task that is started again, or makes another attempt, keeps its place. Every supervisor that waits reads the store and
computes the same schedule (`backfill.py`, `current_queue.py`), and launches only when it is its turn (`turn.py`).

Only the first tasks of a queue need a supervisor that runs. The supervisors of all others are asleep: a shell that
waits for one line and then becomes the supervisor (`asleep.py`). Tasks that launch or end, and commands that look at
tasks, wake those that come next (`waking.py`).

Other tasks pass a task that has no supervisor. If it still holds a host, the host's lease or the local ledger shows
that, not the store. If a launch is refused in its turn because another client holds the host, no task passes it.
"""
