"""The start of a call that only node 0 runs (Ray, MPI): node 0 prepares what the call needs, other nodes follow.

This runs in the worker itself. Processes started here therefore have the worker's environment and mounts, and are
descendants of the node's reaper.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

from ..system import processes


class NotReady(Exception):
    """The call cannot begin; the text says why, and what to do."""


def begin(order: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the completed order on node 0. On other nodes, replaces this process by the follower.

    Raises:
        NotReady: Node 0 could not prepare what the call needs.
    """
    directory = str(order["gang"])
    if order["node"] != 0:
        command = processes.own_command(
            sys.executable, "gang", "follow", directory, flags=("-I", "-S")
        )
        os.execve(command[0], command, dict(order["environment"]))
    told = _lead(directory, dict(order["environment"]))
    if "error" in told:
        raise NotReady(str(told["error"]))
    os.environ.update(told["environment"])
    completed = {**order, "environment": {**order["environment"], **told["environment"]}}
    return {**completed, "argv": told["argv"]} if told.get("argv") else completed


def _lead(directory: str, environment: dict[str, str]) -> dict[str, Any]:
    """Starts the leader process beside this one, and returns its answer."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        # A double fork, so that a program that waits for its children finds no unknown ones.
        try:
            if os.fork() == 0:
                _become_leader(directory, environment, writing)
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with open(reading, "rb") as source:
        line = source.readline()
    try:
        return json.loads(line)  # type: ignore[no-any-return]
    except ValueError:
        log = os.path.join(directory, "gang.log")
        return {"error": f"what connects the nodes ended at once; see {log} on node 0"}


def _become_leader(directory: str, environment: dict[str, str], writing: int) -> None:
    if processes.LINUX:
        # Signals that stop the call must not reach what the call may still need; the reaper ends this process later.
        os.setsid()
    os.dup2(writing, 1)
    processes.redirect(os.path.join(directory, "gang.log"), 2)
    os.closerange(3, 256)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = processes.own_command(sys.executable, "gang", "lead", directory, flags=("-I", "-S"))
    os.execve(command[0], command, environment)
