"""What a test orders of a cloud's API, and what the API has been asked: faults, kills, and the list of calls."""

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
    """The faults on order and the calls so far, of one API server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._calls: list[tuple[str, dict[str, Any]]] = []
        self._unkindness: Unkindness | None = None

    def order(self, **asked: Any) -> None:
        """Adds a fault; arguments as the attributes of `Fault`."""
        known = {f.name for f in fields(Fault)}
        if strange := set(asked) - known:
            raise ValueError(f"a fault has no {sorted(strange)}; it has {sorted(known)}")
        if asked.get("when", BEFORE) not in (BEFORE, AFTER):
            raise ValueError(f"when is 'before' or 'after', not {asked['when']!r}")
        with self._lock:
            self._faults.append(Fault(**asked))

    def be_unkind(self, unkindness: Unkindness | None) -> None:
        """Has calls go wrong by chance from now on; None for no more of it."""
        with self._lock:
            self._unkindness = unkindness

    def lag(self) -> float | None:
        """By how many seconds listings are late now; None where that is not left to chance."""
        with self._lock:
            return self._unkindness.lag() if self._unkindness is not None else None

    def clear(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults.clear()

    def forget(self) -> None:
        """No more faults, and no calls yet."""
        with self._lock:
            self._unkindness = None
            self._faults.clear()
            self._calls.clear()

    @property
    def calls(self) -> list[tuple[str, dict[str, Any]]]:
        """Every call so far: the action and its parameters."""
        with self._lock:
            return list(self._calls)

    def note(self, action: str, parameters: Mapping[str, Any]) -> None:
        """A call has arrived."""
        with self._lock:
            self._calls.append((action, dict(parameters)))

    def take(self, action: str, parameters: Mapping[str, Any], when: str) -> Fault | None:
        """What is to go wrong with this call now; it counts as done."""
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
    """Kills who is to be killed.

    Args:
        client: The caller's end.
        connections: Gives the laptop's table of TCP connections. While others come and go the kernel may leave out
            lines and processes, so that it takes more than one look at times.
    """
    pid, deadline = fault.pid, time.monotonic() + _LOOK_SECONDS
    while pid is None and time.monotonic() < deadline:
        pid = caller(client, connections())
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def caller(client: tuple[str, int], connections: str) -> int | None:
    """The process that holds one end of a connection."""
    address, port = client
    wanted = "".join(f"{int(part):02X}" for part in reversed(address.split("."))) + f":{port:04X}"
    for line in connections.splitlines()[1:]:
        columns = line.split()
        # One of the same port may have ended a while ago, and is nobody's any more.
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
