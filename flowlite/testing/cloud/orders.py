"""The faults ordered for one API server, and the calls that it has received."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from flowlite.testing.cloud.fault import AFTER, BEFORE, Fault

if TYPE_CHECKING:
    from flowlite.testing.cloud.fault_injection import Unkindness

_LOOK_SECONDS = 5.0


class Orders:
    """The pending faults and the received calls of one API server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._calls: list[tuple[str, dict[str, Any]]] = []
        self._unkindness: Unkindness | None = None

    def order(self, **asked: Any) -> None:
        """Adds a fault. The arguments are the attributes of `Fault`."""
        known = {f.name for f in fields(Fault)}
        if strange := set(asked) - known:
            raise ValueError(f"a fault has no {sorted(strange)}; it has {sorted(known)}")
        if asked.get("when", BEFORE) not in (BEFORE, AFTER):
            raise ValueError(f"when is 'before' or 'after', not {asked['when']!r}")
        with self._lock:
            self._faults.append(Fault(**asked))

    def be_unkind(self, unkindness: Unkindness | None) -> None:
        """Injects random faults from now on. None stops them."""
        with self._lock:
            self._unkindness = unkindness

    def lag(self) -> float | None:
        """By how many seconds listings lag now; None if lag is not random."""
        with self._lock:
            return self._unkindness.lag() if self._unkindness is not None else None

    def clear(self) -> None:
        """Removes all faults."""
        with self._lock:
            self._faults.clear()

    def forget(self) -> None:
        """Removes all faults and the record of calls."""
        with self._lock:
            self._unkindness = None
            self._faults.clear()
            self._calls.clear()

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Every call so far, as its action and its parameters."""
        with self._lock:
            return list(self._calls)

    def note(self, action: str, parameters: Mapping[str, Any]) -> None:
        """Records a call."""
        with self._lock:
            self._calls.append((action, dict(parameters)))

    def take(self, action: str, parameters: Mapping[str, Any], when: str) -> Fault | None:
        """The fault to inject into this call, or None. The fault's counters are updated."""
        with self._lock:
            for fault in self._faults:
                if fault.when != when or fault.action not in ("*", action):
                    continue
                if any(str(parameters.get(k)) != str(v) for k, v in fault.match.items()):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                if fault.times > 0:
                    fault.times -= 1
                if fault.times == 0:
                    self._faults.remove(fault)
                return fault
            return self._unkindness.fault(action, when) if self._unkindness is not None else None


def kill(fault: Fault, client: tuple[str, int], connections: Callable[[], str]) -> None:
    """Kills the process that a fault names, or the caller.

    Args:
        client: The client's address and port.
        connections: Returns the laptop's table of TCP connections. The kernel may leave out lines and processes while
            others change, so finding the caller can take several attempts.
    """
    pid, deadline = fault.pid, time.monotonic() + _LOOK_SECONDS
    while pid is None and time.monotonic() < deadline:
        pid = caller(client, connections())
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def caller(client: tuple[str, int], connections: str) -> int | None:
    """The process that holds the client's end of a connection."""
    address, port = client
    wanted = "".join(f"{int(part):02X}" for part in reversed(address.split("."))) + f":{port:04X}"
    for line in connections.splitlines()[1:]:
        columns = line.split()
        # A closed connection with the same port can still be in the table, with no process.
        if columns[1] == wanted and (pid := _holder(f"socket:[{columns[9]}]")) is not None:
            return pid
    return None


def _holder(link: str) -> int | None:
    for pid in filter(re.compile(r"\d+").fullmatch, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/{pid}/fd/{fd}") == link and int(pid) != os.getpid():
                        return int(pid)
    return None
