"""The registry of the fork servers that are kept warm on this machine: lists them, limits their number, ends them.

Each fork server writes to a file beside its socket whether it is in use, and otherwise until when it stays. Other
processes read this file. The fork server itself exits when its time is over, whether or not the file is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time

from ..system import peer_credentials, processes
from ..system.atomic_files import names_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

PREFIX = "kept-"
MOST = 3
"""Fork servers on one machine, unless the settings say otherwise. Each holds its imports in memory (torch: 300 MB)."""
_END_SECONDS = 5.0
# A fork server answers at once, unless it imports just then.
_ANSWER_SECONDS = 30.0
NAME_LENGTH = 24
"""Length of the file name of a fork server's socket."""


class WarmServer:
    """The last recorded state of one fork server.

    Attributes:
        agents: How many agents use it now.
        until: Unix time at which it exits; None while it is in use.
        used: Unix time of the last change.
    """

    __slots__ = ("agents", "pid", "socket", "start", "until", "used")

    def __init__(self, socket: str, told: dict[str, Any]) -> None:
        self.socket = socket
        self.pid = int(told["pid"])
        self.start = str(told["start"])
        self.agents = int(told["agents"])
        self.until: float | None = told["until"]
        self.used = float(told["used"])

    @property
    def alive(self) -> bool:
        return processes.is_alive(self.pid, self.start)

    def to_json(self) -> dict[str, Any]:
        """Returns a dict of plain JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}


@contextlib.contextmanager
def alone(path: str) -> Iterator[None]:
    """Holds the lock under which this user's fork servers are started and removed. `path` is any of their sockets."""
    import fcntl

    lock = os.open(os.path.join(os.path.dirname(path), "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def note(path: str, agents: int, until: float | None) -> None:
    """Records the state of the fork server at this socket. Errors are ignored, since a full disk must not end it."""
    told = {
        **processes.identity(os.getpid()),
        "agents": agents,
        "until": until,
        "used": time.time(),
    }
    part = _part(path)
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(told, file)
        os.replace(part, _state(path))
    except OSError:
        return


def _state(path: str) -> str:
    return f"{path}.state"


def _part(path: str) -> str:
    """Returns the name of the state file until it is complete. It remains if the fork server is killed meanwhile."""
    return f"{_state(path)}.part"


def look(path: str) -> WarmServer | None:
    """Returns the kept fork server at a socket, or None."""
    try:
        with open(_state(path), encoding="utf-8") as file:
            found = WarmServer(path, json.load(file))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.alive else None


def answers(server: WarmServer) -> bool:
    """Whether a kept fork server can be used, as it says itself.

    One that was killed exists for some more moments, since it needs processor time to end. It does not answer any more.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(server.socket)
            if not peer_credentials.may_be_trusted(connection):
                return False
            connection.sendall(b'{"do": "ask"}\n')
            return connection.recv(1 << 10) != b""
        except OSError:
            return False


def all_of(directory: str) -> list[WarmServer]:
    """Returns all kept fork servers, the least recently used first."""
    kept = (name for name in names_in(directory) if name.startswith(PREFIX))
    states = (name.removesuffix(".state") for name in kept if name.endswith(".state"))
    found = (look(os.path.join(directory, name)) for name in states)
    return sorted((each for each in found if each is not None), key=lambda each: each.used)


def make_room(directory: str, most: int) -> None:
    """Retires the least recently used idle fork servers, so that `most` is not exceeded by one more. Those in use stay.

    The caller holds the lock (`alone`).
    """
    tidy(directory)
    present = all_of(directory)
    idle = [each for each in present if not each.agents]
    for each in idle[: max(0, len(present) + 1 - most)]:
        retire(each.socket)


def tidy_alone(directory: str) -> None:
    """Runs `tidy` under the lock."""
    with alone(os.path.join(directory, "any")):
        tidy(directory)


def tidy(directory: str) -> None:
    """Removes the files of fork servers that were killed, kept or not. The caller holds the lock (`alone`)."""
    for name in _dead(directory):
        forget(os.path.join(directory, name))
        _forget_reapers(directory, name)


def _dead(directory: str) -> set[str]:
    """Returns the names of sockets without a listener, including removed sockets whose other files are left."""
    names = {name.partition(".")[0] for name in names_in(directory)}
    sockets = {name for name in names if len(name) == NAME_LENGTH}
    return {name for name in sockets if not listens(os.path.join(directory, name))}


def _forget_reapers(directory: str, name: str) -> None:
    """Removes the hosts files of a fork server's reapers, except of reapers that outlive a retired fork server."""
    for each in os.listdir(directory):
        socket_name, _, rest = each.partition(".")
        pid = rest.removesuffix(".hosts")
        if socket_name == name and pid.isdigit() and not processes.is_alive(int(pid)):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, each))


def listens(path: str) -> bool:
    """Whether a process listens on the socket at this path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            # It is too busy to accept, or may not be reached by this user.
            return True
    return True


def end(servers: list[WarmServer]) -> None:
    """Retires these fork servers, and waits until the idle ones have ended. Those in use end with their last agent."""
    for each in servers:
        retire(each.socket)
    last = time.monotonic() + _END_SECONDS
    for each in servers:
        while not each.agents and each.alive and time.monotonic() < last:
            time.sleep(0.01)


def retire(path: str) -> None:
    """Asks the fork server at a socket to exit with its last reaper. It is no error if there is none."""
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection,
        contextlib.suppress(OSError),
    ):
        connection.connect(path)
        if peer_credentials.may_be_trusted(connection):
            connection.sendall(b'{"do": "retire"}\n')


def forget(path: str) -> None:
    """Removes the socket of a fork server and the files beside it."""
    for each in (path, f"{path}.json", _state(path), _part(path), f"{path}.log"):
        with contextlib.suppress(OSError):
            os.unlink(each)
