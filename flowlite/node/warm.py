"""The warm process, seen from outside: how it is started, found and let go. It imports once what workers need.

There are three kinds of process behind it:

    template   one per task and machine (all local nodes share it; template.py). Shows the volumes, imports, and
               waits on a Unix socket.
    keeper     forked from the template, one for each agent that connects (keeper.py). Starts that node's workers,
               collects them, and stops them when the agent goes.
    worker     forked from the keeper, one per rank (worker.py).

The socket is made by whoever starts the template and handed down to it, so that a client can connect at once and waits
in the queue while the template still imports: nobody polls.
"""

from __future__ import annotations

import errno
import json
import os
import socket

from . import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Mapping
    from typing import Any

IDLE_AFTER_LAST = 10.0
_LONGEST_SOCKET_PATH = 100

_started: list[subprocess.Popen[bytes]] = []


class WarmError(OSError):
    """There is no warm process and none can be started; the text says why."""


def socket_directory() -> str:
    """The directory of this user's sockets, made if need be and safe from other users.

    Raises:
        WarmError: it belongs to somebody else.
    """
    name = f"flowlite-{os.getuid()}"
    base = os.environ.get("TMPDIR") or "/tmp"
    if len(os.path.join(base, name)) > _LONGEST_SOCKET_PATH - 34 or not os.access(base, os.W_OK):
        base = "/tmp"
    directory = os.path.join(base, name)
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise WarmError(error.errno, f"cannot make {directory}: {error.strerror}") from error
    status = os.lstat(directory)
    if status.st_uid != os.getuid() or status.st_mode & 0o40077 != 0o40000:
        raise WarmError(
            errno.EPERM,
            f"{directory} belongs to another user or is open to others; remove it, or set TMPDIR",
        )
    return directory


def socket_path(key: str) -> str:
    """Where the warm process of `key` (a task, or a task and a node) listens."""
    import hashlib

    return os.path.join(socket_directory(), hashlib.sha256(key.encode()).hexdigest()[:24])


def make_spec(
    *,
    task: str,
    socket: str,
    python: str,
    log: str,
    imports: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    volumes: Iterable[Mapping[str, Any]] = (),
    keep_visible: Iterable[str] = (),
    function: bool = True,
    idle: float = IDLE_AFTER_LAST,
) -> dict[str, Any]:
    """What a warm process is told.

    Args:
        socket: Where it listens (`socket_path`).
        imports: Names of modules to import; one that fails is left to the worker to fail on.
        environment: What must be set before anything is imported (the user's `environment=`, OMP_NUM_THREADS).
        volumes: {"name", "path", "source"} each, to be shown at their paths.
        keep_visible: Paths that no volume may hide.
        function: Whether its workers run functions; then what unpickles them is imported too.
        idle: Seconds without any agent after which it ends.
    """
    return {
        "task": task,
        "socket": socket,
        "python": python,
        "log": log,
        "imports": list(imports),
        "environment": dict(environment or {}),
        "volumes": [dict(volume) for volume in volumes],
        "keep_visible": list(keep_visible),
        "function": function,
        "idle": idle,
    }


def ensure(spec: Mapping[str, Any]) -> socket.socket:
    """Connect to the warm process of a spec, starting it if it does not run. Anyone may call this, any number of times.

    Raises:
        WarmError: it cannot be started.
    """
    import fcntl

    connection = _connect(spec["socket"])
    if connection is not None:
        return connection
    lock = os.open(
        os.path.join(os.path.dirname(spec["socket"]), "lock"), os.O_RDWR | os.O_CREAT, 0o600
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = _connect(spec["socket"])
        if connection is None:
            _start(spec)
            connection = _connect(spec["socket"])
        if connection is None:
            raise WarmError(
                errno.ECONNREFUSED, f"the warm process ended at once; see {spec['log']}"
            )
        return connection
    finally:
        os.close(lock)


def dismiss(path: str) -> None:
    """Ask the warm process at a socket to end once its last agent has gone, without waiting for `idle` to pass."""
    connection = _connect(path)
    if connection is not None:
        with connection:
            connection.sendall(b'{"do": "dismiss"}\n')


def _connect(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise WarmError(error.errno, f"cannot reach the warm process at {path}: {error}") from error
    return connection


def _start(spec: Mapping[str, Any]) -> None:
    import subprocess

    from .environment import without_launchers

    _started[:] = [child for child in _started if child.poll() is None]
    path: str = spec["socket"]
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(1024)
        order = os.open(f"{path}.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(order, "w", encoding="utf-8") as file:
            json.dump(dict(spec), file)
        log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            # The environment has to be there before Python starts: PYTHONPATH, LD_LIBRARY_PATH, PYTHONHASHSEED.
            environment = {
                **without_launchers(os.environ),
                **spec["environment"],
                "FLOW_TASK_ID": spec["task"],
            }
            command = processes.own_command(
                spec["python"], "warm", f"{path}.json", str(listener.fileno())
            )
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd="/",
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )
        finally:
            os.close(log)
    except OSError as error:
        raise WarmError(
            error.errno, f"cannot start the warm process with {spec['python']}: {error}"
        ) from error
    finally:
        listener.close()
    _started.append(child)
