"""The warm process that the local nodes of a task share: started as early as there are nodes, before any agent."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType

from flowlite.node import warm
from flowlite.provider import LaunchIntent, NodeSettings

_PACKAGE = "flowlite_node"


def socket_of(home: Path, task_id: str) -> str:
    """Path of its socket; short, as sockets demand."""
    return warm.socket_path(f"{home}/{task_id}")


def start(directory: Path, settings: NodeSettings, intent: LaunchIntent) -> None:
    """Starts it, unless it runs already.

    Args:
        directory: The task's directory; its log goes there.
        settings: Those of any node of the task.
        intent: The launch; without anything to preload, the first agent starts the warm process.

    Raises:
        OSError: It cannot be started.
    """
    agent, call = intent.preload.get("agent"), intent.preload.get("call", {})
    if not agent or settings.warm_socket is None:
        return
    function = call.get("kind") == "function"
    fork = function and call.get("start", "auto") != "spawn"
    workers = intent.count * int(intent.preload.get("processes_per_node", 1))
    threads = max(1, (os.cpu_count() or 1) // workers)
    environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    spec = warm.make_spec(
        task=intent.task_id,
        socket=settings.warm_socket,
        python=settings.python,
        log=str(directory / "warm.log"),
        imports=call.get("imports", ()) if fork else (),
        environment={**environment, **intent.preload.get("environment", {})},
        volumes=settings.volumes,
        keep_visible=[str(directory)],
        function=fork,
    )
    _as_shipped(Path(agent)).ensure(spec).close()


def forget(socket: str) -> None:
    """Removes what it left; it was killed."""
    for path in (socket, f"{socket}.json"):
        with suppress(FileNotFoundError):
            os.unlink(path)


def _as_shipped(agent: Path) -> ModuleType:
    """The module as it lies in the agent's zipapp, so that all processes of a node run the same code."""
    sys.path.insert(0, str(agent))
    try:
        return importlib.import_module(f"{_PACKAGE}.warm")
    finally:
        sys.path.remove(str(agent))
