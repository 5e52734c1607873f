"""How ranks come to torch's store: not before rank 0 has created it, and to what no earlier gang has written there.

Ranks start together, so most of them connect some milliseconds too early, and torch then retries after a random delay
of 0.3 to 1.1 s. This module polls at short intervals whether the store listens, and only then lets torch connect. On
rank 0's own machine it reads the kernel's table of sockets. From other machines it has to connect, for which the torch
on the other side looks up a host name. It therefore does so only if the gang's names are known without a name server
(`mount_namespace/hosts_file.py`).

Since process groups are kept when they are destroyed (`torch_teardown.py`), so are their stores, with the addresses of
the ranks that have met there. Groups that are made anew at the same place write below a prefix of their own.
"""

from __future__ import annotations

import random
import socket
import sys
import time
from contextlib import suppress

from ..mount_namespace import hosts_file
from ..system import addresses

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

LONGEST_SECONDS = 30.0
"""After this time torch connects anyway, waits in its own way, and reports what is wrong."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
_NAMES = ("host_name", "port", "world_size", "is_master", "timeout")
_PREFIX = "flowlite/group"
# The places of the stores of the present group, and how many groups were destroyed at each place. All ranks destroy
# their groups equally often, also where one of them had to try twice to make one.
_present: set[str] = set()
_destroyed: dict[str, int] = {}


def come_when_it_listens(rendezvous: ModuleType) -> None:
    """Makes the clients that `torch.distributed.rendezvous` creates wait until their store listens.

    Args:
        rendezvous: That module. It is left alone if this version of torch has no such class in it.
    """
    made = getattr(rendezvous, "TCPStore", None)
    if made is None or hasattr(made, "__wrapped__"):
        return

    def patient(*arguments: Any, **options: Any) -> Any:
        place = ""
        # Other versions of torch may call it with other arguments.
        with suppress(Exception):
            named = {**dict(zip(_NAMES, arguments, strict=False)), **options}
            place = f"{named['host_name']}:{named['port']}"
            _wait(named)
        return _apart(place, made(*arguments, **options))

    patient.__wrapped__ = made  # type: ignore[attr-defined]
    rendezvous.TCPStore = patient  # type: ignore[attr-defined]
    in_file = getattr(rendezvous, "FileStore", None)
    if in_file is None:
        return

    def of_file(*arguments: Any, **options: Any) -> Any:
        place = str(arguments[0]) if arguments else ""
        return _apart(place, in_file(*arguments, **options))

    of_file.__wrapped__ = in_file  # type: ignore[attr-defined]
    rendezvous.FileStore = of_file  # type: ignore[attr-defined]


def note_end() -> None:
    """Notes that the ranks' process group was destroyed, while its store is kept."""
    for place in _present:
        _destroyed[place] = _destroyed.get(place, 0) + 1
    _present.clear()


def _apart(place: str, store: Any) -> Any:
    """Returns the store without what the groups before have left in it."""
    if not place:
        return store
    _present.add(place)
    before = _destroyed.get(place, 0)
    if not before:
        return store
    return sys.modules["torch.distributed"].PrefixStore(f"{_PREFIX}{before}", store)


def file_of(store: Any) -> str | None:
    """The file that a store is in, if it is in one."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return str(store.path) if type(store).__name__ == "FileStore" else None


def _wait(options: Mapping[str, Any]) -> None:
    look = None if options.get("is_master") else _look_at(str(options["host_name"]))
    if look is None:
        return
    seconds = LONGEST_SECONDS
    if options.get("timeout") is not None:
        seconds = min(seconds, options["timeout"].total_seconds())
    until, pause = time.monotonic() + seconds, _FIRST_PAUSE
    while not look(int(options["port"])) and time.monotonic() < until:
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(1.5 * pause, _LONGEST_PAUSE)


def _look_at(host: str) -> Callable[[int], bool] | None:
    """Returns a function that tells whether a port of that host listens; None if probing it would do harm."""
    if addresses.address_towards(host) == host:
        return _is_listened_on
    return (lambda port: _answers(host, port)) if hosts_file.gang_is_known() else None


def _is_listened_on(port: int) -> bool:
    """Whether a socket on this machine listens on a port, as far as the kernel shows it."""
    for table in _TABLES:
        with suppress(OSError), open(table, encoding="ascii") as file:
            next(file)
            for line in file:
                _, local, _, state, _ = line.split(maxsplit=4)
                if state == _LISTEN and int(local.rpartition(":")[2], 16) == port:
                    return True
    return False


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except (ConnectionRefusedError, TimeoutError):
        return False
    return True
