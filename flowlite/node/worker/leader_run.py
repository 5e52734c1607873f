"""What a worker does first where node 0 leads: there it has all ready that the call is to find, elsewhere it follows.

Runs in the worker itself, so that whatever it starts sees what the worker sees, and is below the node's reaper.
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
    """Gives, on node 0, the completed order; on other nodes this process becomes the one that follows.

    Raises:
        NotReady: What the call needs cannot be had.
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
    """Starts the process beside this one, and hears what it has to say."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        # Forked twice: a program that waits for its children finds none that it does not know.
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
        told = json.loads(line)
    except ValueError:
        log = os.path.join(directory, "gang.log")
        return {"error": f"what connects the nodes ended at once; see {log} on node 0"}
    return told if isinstance(told, dict) else {}


def _become_leader(directory: str, environment: dict[str, str], writing: int) -> None:
    if processes.LINUX:
        # What stops the call must leave what the call may still need; the reaper ends this once that is gone.
        os.setsid()
    log = os.open(
        os.path.join(directory, "gang.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
    )
    os.dup2(writing, 1)
    os.dup2(log, 2)
    os.closerange(3, 256)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    command = processes.own_command(sys.executable, "gang", "lead", directory, flags=("-I", "-S"))
    os.execve(command[0], command, environment)
