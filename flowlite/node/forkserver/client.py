"""The client of the fork server: starts it, and connects to it.

Three kinds of processes are involved:

    fork server   One per task and machine, shared by all local nodes; or, with `keep_warm`, one for all compatible
                  tasks (compatibility.py). Imports modules, and listens on a Unix socket (server.py).
    reaper        Forked from the fork server, one for each agent that connects (reaper.py). Mounts that node's volumes
                  and buckets, starts its workers, collects them, and stops them when the agent's connection ends.
    worker        Forked from the reaper, one per rank (worker/worker.py).

The process that starts the fork server also creates its socket, and passes it on. A client can therefore connect at
once, and waits in the backlog while the fork server imports, without polling.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys

from ..config.python_command import NotForked
from ..system import node_facts, peer_credentials, process_title, processes, runtime_dir
from ..worker.environment import OWNERS, import_environment, without_launchers
from . import compatibility, paused_python, registry

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, NoReturn

IDLE_AFTER_LAST = 10.0

_started: list[subprocess.Popen[bytes]] = []


class ForkServerError(OSError):
    """There is no fork server and none can be started; the text says why."""


def socket_path(key: str) -> str:
    """Returns the socket path of the fork server of `key` (a task, or a task and a node)."""
    import hashlib

    name = hashlib.sha256(os.fsencode(key)).hexdigest()[: registry.NAME_LENGTH]
    return os.path.join(runtime_dir.find(), name)


def forks_for(call: Mapping[str, Any], *, in_container: bool = False) -> bool:
    """Whether the workers of a call are forked from a process that has imported what they need."""
    script = call.get("kind") == "command" and "imports" in call and not in_container
    return (call.get("kind") == "function" or script) and call.get("start") != "spawn"


def of_call(
    call: Mapping[str, Any],
    *,
    task: str,
    python: str,
    workers: int,
    environment: Mapping[str, str],
    in_container: bool = False,
) -> dict[str, Any]:
    """Returns what a call says of its fork server, for `make_spec` and `make_kept_spec`.

    Args:
        python: The Python of the workers; "" for that of this process.
        workers: The number of workers that share the cores of this machine.
        environment: The user's `environment=`.
        in_container: Whether the fork server runs in a container, which has paths of its own.
    """
    forks = forks_for(call, in_container=in_container)
    threads = max(1, node_facts.cores() // workers)
    variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    if forks and not in_container:
        variables |= import_environment(python)
    return {
        "task": task,
        "python": python or sys.executable,
        "imports": call.get("imports", ()) if forks else (),
        "environment": {**variables, **environment},
        "argv": call["argv"] if forks and call["kind"] == "command" else (),
    }


def make_spec(
    *,
    task: str,
    socket: str,
    python: str,
    log: str,
    imports: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    function: bool = True,
    argv: Sequence[str] = (),
    idle: float = IDLE_AFTER_LAST,
) -> dict[str, Any]:
    """Returns the spec of a fork server that serves one task.

    Args:
        socket: The socket on which it listens (`socket_path`).
        imports: Names of modules to import. If an import fails, the worker raises the error.
        environment: Variables to set before anything is imported (the user's `environment=`, OMP_NUM_THREADS).
        function: Whether its workers run functions; if so, the modules that unpickle them are imported too.
        argv: The command of its workers, if they are to run it in this Python (paused_python.py).
        idle: Seconds without any agent after which it exits.
    """
    return {
        "task": task,
        "socket": socket,
        "python": python,
        "log": log,
        "imports": list(imports),
        "environment": dict(environment or {}),
        "function": function,
        "argv": list(argv),
        "idle": idle,
        "key": "",
        "marks": {},
        "most": 0,
    }


def can_be_kept(socket: str | None) -> bool:
    """Whether a fork server with this socket (None: not chosen yet) may be kept for other tasks."""
    chosen = socket is None or os.path.basename(socket).startswith(registry.PREFIX)
    # Elsewhere processes are not forked, and the owner of a process cannot be found.
    return processes.LINUX and chosen


def make_kept_spec(
    *,
    task: str,
    python: str,
    seconds: float,
    imports: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    secrets: Iterable[str] = (),
    argv: Sequence[str] = (),
    most: int = registry.MOST,
) -> dict[str, Any]:
    """Returns the spec of a fork server that is kept for compatible tasks (compatibility.py).

    Args:
        task: The task that owns the reapers and workers of this spec. The fork server itself belongs to no task.
        seconds: How long it stays after its last agent has left.
        imports: As for `make_spec`. Modules that a later task needs in addition are imported then.
        environment: As for `make_spec`.
        secrets: Names of variables that its environment must not contain.
        argv: As for `make_spec`. Only commands that start alike, but for their arguments, share a fork server.
        most: The largest number of such fork servers on this machine.

    Raises:
        OSError: There is no directory for its socket.
    """
    whole = {**compatibility.inherited(os.environ, secrets), **(environment or {})}
    held = _held(argv, python, whole)
    start = paused_python.command_line(held["script"]) if "script" in held else argv[:1]
    key = compatibility.key(whole, python, node_facts.agent_digest(), start)
    name = f"{registry.PREFIX}{key[: registry.NAME_LENGTH - len(registry.PREFIX)]}"
    socket = os.path.join(runtime_dir.find(), name)
    owners = {name: os.environ[name] for name in OWNERS if name in os.environ}
    spec = make_spec(
        task="",
        socket=socket,
        python=python,
        log=f"{socket}.log",
        imports=imports,
        environment={**whole, process_title.PADDING: process_title.room()},
        function=not argv,
        argv=argv,
        idle=seconds,
    )
    return {
        **spec,
        **held,
        "key": key,
        "marks": {"FLOW_TASK_ID": task, **owners},
        "most": most,
    }


def _held(argv: Sequence[str], python: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Returns the entries of a spec that say how its Python is held before a script, or why it is not."""
    if not argv:
        return {}
    try:
        return {"script": paused_python.start_of(argv, python, environment)}
    except NotForked as reason:
        return {"why": str(reason)}


def begin(spec: Mapping[str, Any]) -> None:
    """Starts the fork server of a spec if needed, and its imports, without waiting for them.

    Raises:
        ForkServerError: It cannot be started.
    """
    with _ensure(spec) as connection:
        _say(connection, do="import", imports=spec["imports"])


def fork(spec: Mapping[str, Any]) -> None:
    """Forks a fork server that imports nothing from this process, so that it needs no interpreter of its own.

    Call this before any thread or event loop exists. A fork server that already runs is left alone.

    Raises:
        OSError: It cannot be started.
    """
    # Imported now, because the zip that holds them may be gone later.
    from . import reaper, server

    _ = reaper, server
    with registry.alone(spec["socket"]):
        connection = _connect(spec["socket"])
        if connection is not None:
            connection.close()
            return
        with listen(spec["socket"]) as listener:
            log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                if os.fork() == 0:
                    _be_forked(spec, listener, log)
            finally:
                os.close(log)


def _be_forked(spec: Mapping[str, Any], listener: socket.socket, log: int) -> NoReturn:
    """Runs the fork server in the forked process, without its parent's files, locks and environment."""
    from . import server

    try:
        os.setsid()
        for number in (1, 2):
            os.dup2(log, number)
        processes.close_others(listener.fileno())
        environment = _environment(spec)
        os.environ.clear()
        os.environ.update(environment)
        server.serve(spec, listener)
    finally:
        os._exit(1)


def join(spec: Mapping[str, Any]) -> socket.socket:
    """Connects to the fork server of a spec, starting it if needed, and asks it for a reaper.

    Raises:
        ForkServerError: It cannot be started.
    """
    connection = _ensure(spec)
    _say(connection, do="join", imports=spec["imports"], keep=spec["idle"], marks=spec["marks"])
    return connection


def _ensure(spec: Mapping[str, Any]) -> socket.socket:
    connection = _connect(spec["socket"])
    if connection is not None:
        return connection
    with registry.alone(spec["socket"]):
        connection = _connect(spec["socket"])
        if connection is None:
            if spec["key"]:
                registry.make_room(os.path.dirname(spec["socket"]), spec["most"])
            _start(spec)
            connection = _connect(spec["socket"])
    if connection is None:
        raise ForkServerError(
            errno.ECONNREFUSED, f"the fork server ended at once; see {spec['log']}"
        )
    return connection


def _say(connection: socket.socket, **request: Any) -> None:
    try:
        connection.sendall(json.dumps(request).encode() + b"\n")
    except BrokenPipeError:
        # The fork server is exiting. A caller that reads the answer gets EOF.
        return


def _connect(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise ForkServerError(
            error.errno, f"cannot reach the fork server at {path}: {error}"
        ) from error
    if not peer_credentials.may_be_trusted(connection):
        uid = peer_credentials.uid_of(connection)
        connection.close()
        raise ForkServerError(
            errno.EPERM, f"{path} is held by uid {uid}, who is not the user of this task"
        )
    return connection


def _start(spec: Mapping[str, Any]) -> None:
    import subprocess

    if spec.get("inside"):
        raise ForkServerError(
            errno.ECONNREFUSED, f"the container ended while it got ready; see {spec['log']}"
        )
    _started[:] = [child for child in _started if child.poll() is None]
    path: str = spec["socket"]
    listener = None
    environment = _environment(spec)
    spec = {**_held(spec["argv"], spec["python"], environment), **spec}
    try:
        listener = listen(path)
        _write_order(f"{path}.json", {**spec, "environment": {}})
        log = os.open(spec["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            executable = None
            # Variables that Python reads when it starts: PYTHONPATH, LD_LIBRARY_PATH, PYTHONHASHSEED.
            command = processes.own_command(
                *(spec["python"], "warm", f"{path}.json", str(listener.fileno())),
                program=spec.get("program", ""),
            )
            if (script := spec.get("script")) is not None:
                executable, command = script["executable"], paused_python.command_line(script)
                environment = paused_python.environment_of(
                    environment, f"{path}.json", listener.fileno()
                )
            child = subprocess.Popen(
                command,
                executable=executable,
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
        raise ForkServerError(
            error.errno, f"cannot start the fork server with {spec['python']}: {error}"
        ) from error
    finally:
        if listener is not None:
            listener.close()
    _started.append(child)


def _write_order(path: str, order: Mapping[str, Any]) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(order, file)
    except OSError as error:
        # The directory for temporary files may be full where that of the task is not.
        directory = os.path.dirname(path)
        why = f"nothing can be written to {directory} ({error.strerror}); make room there, or set TMPDIR"
        raise OSError(error.errno, why) from error


def listen(path: str) -> socket.socket:
    """Returns a listening socket at a path, in place of what is there. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def _environment(spec: Mapping[str, Any]) -> dict[str, str]:
    if spec["key"]:
        return dict(spec["environment"])
    return {
        **without_launchers(os.environ),
        **spec["environment"],
        "FLOW_TASK_ID": spec["task"],
    }
