"""Standby: an idle supervisor waits a while for the next task of its FLOW_HOME.

Where nodes are kept warm for the next task, so is the process that led the last one: its modules are imported and its
connections to the nodes are open. The submitting process hands the task over through a Unix socket, with the
environment that a new process would have been given. Everything else that a process inherits from its starter is part
of the socket's name. If the spare cannot be reached or does not answer at once, a new supervisor is started instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import flowlite
from flowlite.node.forkserver import client, compatibility, registry, staleness
from flowlite.node.host_lease.requests import read_line
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system import peer_credentials, processes, runtime_dir
from flowlite.node.system.accepting import accept
from flowlite.supervise.record import process_identity
from flowlite.supervise.record.paths import TaskPaths

# A spare either waits or leads a task and does not listen, so it answers at once or not at all.
_ANSWER_SECONDS = 2.0
# An environment may have 2 MiB, and more where it is escaped.
_LONGEST_REQUEST = 1 << 22


@dataclass(frozen=True, slots=True)
class HandedTask:
    """A task that was handed over, and the environment of the process that did."""

    task_id: str
    environment: dict[str, str]

    def begin(self, home: Path) -> None:
        """Sets the environment and log of this process as a new supervisor would have them."""
        os.environ.clear()
        os.environ.update(self.environment)
        processes.redirect(TaskPaths(home, self.task_id).supervisor_log, 1, 2)


class Standby:
    """A supervisor's process between two tasks.

    Args:
        began: Unix time at which the process started. If a file it has imported was changed since then, its modules
            may be of mixed versions.
    """

    def __init__(self, began: float) -> None:
        self._watched = staleness.Loaded()
        self._began = began
        self._leaving = False

    def wait(self, home: Path, seconds: float) -> HandedTask | None:
        """Waits for a task. None if none came in that time, or if this process must not lead another one."""
        if not processes.LINUX or (listener := _listen(home)) is None:
            return None
        self._watched.note(self._began)
        path = listener.getsockname()
        # The log of the last task may be removed meanwhile.
        processes.redirect(os.devnull, 1, 2)
        _keep_connections(seconds)
        until = time.monotonic() + seconds
        try:
            while not self._leaving and (left := until - time.monotonic()) > 0:
                if select.select([listener], [], [], left)[0]:
                    handed = self._receive(listener)
                    if handed is not None:
                        return handed
        finally:
            with registry.alone(path):
                listener.close()
                with contextlib.suppress(OSError):
                    os.unlink(path)
        return None

    def _receive(self, listener: socket.socket) -> HandedTask | None:
        accepted = accept(listener)
        if accepted is None:
            return None
        connection, _ = accepted
        with connection:
            connection.settimeout(_ANSWER_SECONDS)
            try:
                if not peer_credentials.is_ours(connection):
                    return None
                request = json.loads(read_line(connection, _LONGEST_REQUEST))
                # Exits if dismissed, or if modules on disk have changed, since a new process would then run other
                # code.
                self._leaving = request["task"] == "" or self._watched.changed() is not None
                if self._leaving:
                    return None
                handed = HandedTask(str(request["task"]), dict(request["environment"]))
                here = process_identity.of_process(os.getpid()).to_json()
                connection.sendall(json.dumps(here).encode() + b"\n")
            except (OSError, ValueError, KeyError):
                return None
        return handed


def hand_over(
    home: Path, task_id: str, environment: Mapping[str, str]
) -> process_identity.Process | None:
    """Hands a task to a spare supervisor. Returns its process, or None if there is no spare."""
    try:
        path = _path(home)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(path)
            if not peer_credentials.is_ours(connection):
                return None
            request = {"task": task_id, "environment": dict(environment)}
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(read_line(connection))
        return process_identity.Process(int(answer["pid"]), str(answer["start"]))
    except (OSError, ValueError, KeyError):
        return None


def dismiss(home: Path) -> None:
    """Makes the spare of this FLOW_HOME exit, if there is one."""
    hand_over(home, "", {})


def _listen(home: Path) -> socket.socket | None:
    """Returns a socket to listen on, or None if this FLOW_HOME already has a spare."""
    try:
        path = _path(home)
        with registry.alone(path):
            return None if registry.listens(path) else client.listen(path)
    except OSError:
        return None


def _path(home: Path) -> str:
    parts = [str(home), sys.executable, str(flowlite.__file__), compatibility.surroundings()]
    name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return os.path.join(runtime_dir.find(), f"spare-{name[:18]}")


def _keep_connections(seconds: float) -> None:
    transport = sys.modules.get("flowlite.connect.ssh.transport")
    if transport is not None:
        transport.stay_idle(seconds)
