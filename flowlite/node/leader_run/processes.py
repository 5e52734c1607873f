"""The processes on each node of a gang that node 0 leads.

`gang follow ATTEMPT_DIR` is the worker of every node but node 0. It runs the node's exec server, executes commands for
node 0, and ends when node 0 does. `gang lead ATTEMPT_DIR` runs beside the worker of node 0
(`node/worker/leader_run.py`). It runs that node's exec server, prepares everything the call needs, and reports in one
line of JSON on its standard output: {"environment": {...}, "argv": [...] or null} or {"error": text}. Both end all
commands started through them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from typing import Any

from ..config import distributed_modes
from ..protocol.framing import WireError
from ..system import atomic_files, processes
from ..system.atomic_files import write_atomically
from ..system.signals import watch_signals
from ..worker import launcher_files
from . import mpi
from .context import GangContext, Unreachable
from .exec_server import STOP_SECONDS, ExecServer

_ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# In place of the number of a signal: the exec server has ended.
_SERVED = 0
_LOOK_AGAIN = 0.02


class _Ending:
    """Waits for the end of an exec server, or for a signal to this process."""

    def __init__(self, server: ExecServer) -> None:
        self._server = server
        self.number = 0
        # A pipe, and no event: a signal that comes just before the main thread waits for an event does not wake it.
        self._heard, self._hears = os.pipe()
        watch_signals(self._hears, _ENDINGS)
        # A warning signal to the user's code; it must not end this process.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        self._server.serve()
        os.write(self._hears, bytes([_SERVED]))

    def wait(self) -> None:
        """Waits for the end, then stops the started commands and gives them some time.

        After a signal, a node other than node 0 waits until node 0 has ended, since node 0's call may need this node
        for its shutdown. The reaper limits that time.
        """
        self.number = os.read(self._heard, 1)[0]
        if self.number != _SERVED:
            self._server.stop(self.number)
            if not self._server.leads:
                self._server.over.wait()
        self._server.stop(signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS
        while self._server.busy and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN)


def follow(directory: str) -> int:
    """Runs `gang follow ATTEMPT_DIR`."""
    place = GangContext.read(directory)
    os.environ.update(programs_of(place))
    server = ExecServer(place)
    ending = _Ending(server)
    ending.wait()
    if server.lost:
        sys.stderr.write(f"flowlite: this node has lost node 0: {server.lost}\n")
        return 1
    if ending.number:
        return 128 + ending.number
    if place.config.call["kind"] == "function":
        from ..serialization import result_file

        result = place.paths.stream(place.rank, "result")
        result_file.write_value(result, None, node=place.rank, rank=place.rank)
    return 0


def lead(directory: str) -> int:
    """Runs `gang lead ATTEMPT_DIR`."""
    place = GangContext.read(directory)
    os.environ.update(programs_of(place))
    server = ExecServer(place)
    ending = _Ending(server)
    threading.Thread(target=_have_ready, args=(place, server), daemon=True).start()
    ending.wait()
    return 0


def programs_of(place: GangContext) -> dict[str, str]:
    """Writes the programs for this node's workers and returns the variables that lead to them."""
    directory = place.paths.directory
    found = {"ssh": "ssh", "rsh": "ssh"}
    if place.config.mode == distributed_modes.MPI:
        found[mpi.RANK_PROGRAM] = "rank"
    elif place.config.mode == distributed_modes.RAY:
        found["flow-ray"] = "ray"
    for name, what in found.items():
        # A rank may run the user's function, with all that the Python has.
        flags = () if what == "rank" else ("-I", "-S")
        own = processes.own_command(sys.executable, "gang", what, str(directory), flags=flags)
        processes.write_program(directory / "bin" / name, own)
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return {"PATH": f"{directory / 'bin'}:{path}", "FLOW_GANG": str(directory)}


def _have_ready(place: GangContext, server: ExecServer) -> None:
    try:
        _await_all(place)
        told = _ready(place)
    except (OSError, WireError, ValueError) as error:
        told = {"error": str(error)}
    _say(told)
    if "error" in told:
        server.over.set()


def _await_all(place: GangContext) -> None:
    """Waits until the exec servers of all nodes are connected. Raises Unreachable."""
    stream = place.dial("wait", seconds=place.config.join_timeout)
    with stream.network:
        stream.go_on()
        told = json.loads(stream.read_line())
    if "error" in told:
        raise Unreachable(str(told["error"]))


def _ready(place: GangContext) -> dict[str, Any]:
    environment: dict[str, str] = {}
    argv = None
    if place.config.mode == distributed_modes.RAY:
        from . import ray_cluster

        environment = ray_cluster.gather(place)
    elif place.config.mode == distributed_modes.MPI:
        from . import horovod

        directory, slots = place.paths.directory, place.config.processes_per_node
        hosts = launcher_files.hostfile(place.addresses, slots)
        write_atomically(directory / launcher_files.HOSTFILE, hosts)
        write_atomically(directory / "machinefile", mpi.machinefile(place))
        environment = mpi.environment(place, str(directory))
        argv = mpi.command(place, horovod.serve(place.addresses[0]))
    ours = {name: os.environ[name] for name in ("PATH", "FLOW_GANG")}
    return {"environment": {**ours, **environment}, "argv": argv}


def _say(told: dict[str, Any]) -> None:
    atomic_files.write(1, json.dumps(told).encode() + b"\n")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
