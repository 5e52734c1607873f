"""Sets the variables of a gang with one worker for a plain call of a decorated function outside of a gang.

Distributed code can then run in the caller's own process, for debuggers and unit tests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flowlite.in_worker.on_node import LOCAL_TASK, on_a_node

_ADDRESS = "127.0.0.1"
_LAUNCHED = ("RANK", "WORLD_SIZE")
_lock = threading.Lock()
# The number of calls that are in progress, and the values of the variables before the first of them.
_calls = 0
_before: dict[str, str | None] = {}


@contextmanager
def world_of_one(name: str) -> Iterator[None]:
    """Sets the variables of a worker while the block runs, and restores the previous values.

    Nothing is set in a worker, or if another launcher has given this process a rank. Nested calls, and calls in several
    threads, share one world. `name` is that of the function.
    """
    global _calls
    with _lock:
        joins = _calls > 0 or not (on_a_node() or any(each in os.environ for each in _LAUNCHED))
        if joins:
            if _calls == 0:
                _enter(name)
            _calls += 1
    try:
        yield
    finally:
        if joins:
            with _lock:
                _calls -= 1
                if _calls == 0:
                    _leave()


def _enter(name: str) -> None:
    for variable, value in _variables(name).items():
        _before[variable] = os.environ.get(variable)
        os.environ[variable] = value


def _leave() -> None:
    for variable, value in _before.items():
        if value is None:
            os.environ.pop(variable, None)
        else:
            os.environ[variable] = value
    _before.clear()


def _variables(name: str) -> dict[str, str]:
    """The variables of the one worker of a gang on this machine, without those that are only defaults."""
    from flowlite.node.worker.environment import DEFAULT, TABLE, WorkerPlace

    place = WorkerPlace(
        task=LOCAL_TASK,
        name=name,
        attempt=1,
        mode="auto",
        node_rank=0,
        local_rank=0,
        processes_per_node=1,
        addresses=(_ADDRESS,),
        master_addr=_ADDRESS,
        master_port=_free_port(),
        provider="local",
    )
    rows = ((row, row.value(place)) for row in TABLE if "auto" in row.modes)
    return {
        row.name: str(value) for row, value in rows if row.strength != DEFAULT and value is not None
    }


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind((_ADDRESS, 0))
        port: int = probe.getsockname()[1]
    return port
