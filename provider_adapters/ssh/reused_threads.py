"""Threads that wait a while for more work, since a task asks all of its hosts several times within a moment.

They are daemons, unlike those of an executor: nobody waits for a call to a host that hangs when a process exits.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable

Work = Callable[[], None]

IDLE_SECONDS = 5.0
_idle: list[queue.SimpleQueue[Work]] = []
_lock = threading.Lock()


def run(work: Work) -> None:
    """Does a piece of work, which raises nothing, in a thread that is free at once."""
    with _lock:
        inbox = _idle.pop() if _idle else None
    if inbox is None:
        threading.Thread(target=_serve, args=(work,), daemon=True).start()
    else:
        inbox.put(work)


def _serve(work: Work) -> None:
    inbox: queue.SimpleQueue[Work] = queue.SimpleQueue()
    while True:
        work()
        # What the work holds is not needed any more.
        del work
        with _lock:
            _idle.append(inbox)
        try:
            work = inbox.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            with _lock:
                if inbox in _idle:
                    _idle.remove(inbox)
                    return
            # It was given some at this moment.
            work = inbox.get()


def _after_fork() -> None:
    # The child does not have these threads, and one of them may hold the lock.
    global _lock
    _lock = threading.Lock()
    _idle.clear()


os.register_at_fork(after_in_child=_after_fork)
