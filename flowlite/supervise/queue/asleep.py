"""Supervisors that are asleep: a shell that waits for one line, and then becomes the supervisor.

Hundreds of tasks may wait at the same time, and a supervisor takes some 30 MB. The shell takes less than one, and has
the process id, the environment and the log that the supervisor will have. It reads from a FIFO in the task's directory,
which it keeps open, so that a FIFO without a reader belongs to no sleeping supervisor.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from flowlite.supervise.record.paths import TaskPaths

_SHELL = 'read -r line; exec "$@" </dev/null'


def start(
    paths: TaskPaths, argv: Sequence[str], environment: Mapping[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Starts a supervisor that is asleep."""
    with suppress(FileExistsError):
        os.mkfifo(paths.asleep, 0o600)
    # Opened for writing too, or the shell would read the end of the file once the first writer has closed it.
    fifo = os.open(paths.asleep, os.O_RDWR | os.O_CLOEXEC)
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _SHELL, "flowlite", *argv],
            cwd="/",
            env=dict(environment),
            stdin=fifo,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    finally:
        os.close(fifo)


def is_asleep(home: Path, task_id: str) -> bool:
    """Whether the task's supervisor is asleep."""
    writer = _open(home, task_id)
    if writer is not None:
        os.close(writer)
    return writer is not None


def wake(home: Path, task_id: str) -> None:
    """Wakes the task's supervisor, if it is asleep."""
    writer = _open(home, task_id)
    if writer is not None:
        with suppress(OSError):
            os.write(writer, b"go\n")
        os.close(writer)


def _open(home: Path, task_id: str) -> int | None:
    try:
        fifo = TaskPaths(home, task_id).asleep
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
