"""Ranks that come to torch's store before rank 0 has made it.

Ranks start together, so most of them are some milliseconds too early; torch then tries again after 0.3 to 1.1 s, at
random. Here they look in short turns whether the store listens, and let torch go there when it does. On rank 0's own
machine the kernel's table of sockets tells. From elsewhere only a connection does, for which torch asks a name server
on the other side; so that is done only where the names of the gang are known without one
(mount_namespace/hosts_file.py).
"""

from __future__ import annotations

import random
import socket
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
"""After that, torch is left to wait as it does, and to say what is wrong."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
_NAMES = ("host_name", "port", "world_size", "is_master", "timeout")


def come_when_it_listens(rendezvous: ModuleType) -> None:
    """Have the clients that `torch.distributed.rendezvous` makes wait for their store.

    Args:
        rendezvous: That module; another torch may do without the class, and is left alone.
    """
    made = getattr(rendezvous, "TCPStore", None)
    if made is None or hasattr(made, "__wrapped__"):
        return

    def patient(*arguments: Any, **options: Any) -> Any:
        # Another torch may call it in another way.
        with suppress(Exception):
            _wait({**dict(zip(_NAMES, arguments, strict=False)), **options})
        return made(*arguments, **options)

    patient.__wrapped__ = made  # type: ignore[attr-defined]
    rendezvous.TCPStore = patient  # type: ignore[attr-defined]


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
    """What tells whether a port of that host is listened on; None if it cannot be told without harm."""
    if addresses.address_towards(host) == host:
        return _is_listened_on
    return (lambda port: _answers(host, port)) if hosts_file.gang_is_known() else None


def _is_listened_on(port: int) -> bool:
    """Whether somebody on this machine listens on a port, as far as the kernel shows it."""
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
