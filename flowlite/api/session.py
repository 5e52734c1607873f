"""FLOW_HOME and its database, opened once per process and shared by all of the client's code."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from flowlite.node.quick_dataclass import dataclass
from flowlite.settings import flow_home, ssh_agent
from flowlite.state.store import Store
from flowlite.supervise.cleanup.store_copy import copy_in_background
from flowlite.supervise.record.paths import TaskPaths

_open: dict[tuple[int, Path], Session] = {}
# Reentrant, as the other locks of a program's main thread, since a signal handler may come in while it is held.
_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Session:
    """An open FLOW_HOME."""

    home: Path
    store: Store
    write_probe: flow_home.WriteProbe

    def paths(self, task_id: str) -> TaskPaths:
        """The paths of a task's files."""
        return TaskPaths(self.home, task_id)

    def ensure(self, task_id: str | None = None) -> list[str]:
        """Starts a new supervisor for each task whose supervisor was killed; of one task, or of all."""
        from flowlite.supervise.process.launch import ensure_supervisors, look_after_all

        if task_id is None:
            return look_after_all(self.store, self.home)
        return ensure_supervisors(self.store, self.home, only=task_id)


def take_damage() -> list[str]:
    """Descriptions of the damaged rows that the stores of this process have skipped since the last call."""
    with _lock:
        return [text for session in _open.values() for text in session.store.take_damage()]


def open_session() -> Session:
    """The FLOW_HOME of this process; created if it does not exist. Raises ConfigError, StoreError."""
    home = flow_home.home()
    # A forked child must not use its parent's database connection.
    key = (os.getpid(), home)
    with _lock:
        session = _open.get(key)
        path = home / "state.db"
        if session is None or not path.exists():
            if not path.exists():
                flow_home.ensure_home()
            _close_removed()
            store = Store(path, skip_damaged=True)
            session = Session(home, store, flow_home.WriteProbe(home))
            _open[key] = session
            copy_in_background(home)
            ssh_agent.note(home)
        return session


def _close_removed() -> None:
    """Closes the databases of homes that were removed. A test suite has a home for each of its tests."""
    for (pid, home), session in list(_open.items()):
        # The connections of a parent process are not closed in its forked child.
        if pid == os.getpid() and not session.store.path.exists():
            del _open[pid, home]


def _after_fork() -> None:
    # Another thread of the parent may have held the lock.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
