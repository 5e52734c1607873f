"""MASTER_PORT: the leader chooses it, listens on it as a check, and closes it at GO, before any worker starts.

Between GO and the moment when rank 0 binds the port, flowlite does not listen on it, because the framework's own
rendezvous needs it. Two locks keep other tasks of the machine from choosing it meanwhile: a file lock, with one file
for each port, and the UDP port of the same number, which no framework uses. The second one also works between
different users and different FLOW_HOMEs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from ..system.accepting import accept_in_loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio

PREFERRED = 29500
_LAST = 30500
_PROBES_KEPT = 128
_NO_LINGER = struct.pack("ii", 1, 0)


class MasterPort:
    """The port for the workers' own rendezvous, on the leader.

    Args:
        address: The address by which other nodes reach the leader.
        locks: Directory of the file locks, shared by all tasks of this machine; None: only the UDP lock is taken.
        preferred: The port to take if it is free.

    Attributes:
        port: The chosen port; None before `prove`.
    """

    def __init__(self, address: str, locks: Path | None = None, preferred: int = PREFERRED) -> None:
        self.address = address
        self.port: int | None = None
        self._locks = locks
        self._preferred = preferred
        self._lock: contextlib.ExitStack | None = None
        self._listener: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._probes: deque[socket.socket] = deque()

    def prove(self) -> int:
        """Choose a free port, listen on it and return it.

        Raises:
            OSError: No port can be had; the text says what was tried.
        """
        self.close()
        for port in self._candidates():
            locks = self._locked(port)
            if locks is None:
                continue
            try:
                listener = listen_everywhere(port, self.address)
            except OSError as error:
                locks.close()
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    continue
                raise OSError(
                    error.errno,
                    f"MASTER_PORT cannot be bound on {self.address}: {error.strerror}. Is this an "
                    "address of the leader?",
                ) from error
            self._lock, self._listener, self.port = locks, listener, port
            self._drain(listener)
            return port
        raise OSError(
            errno.EADDRINUSE,
            f"no port from {self._preferred} to {_LAST} is free on {self.address} for MASTER_PORT. "
            "Look what holds them with `ss -ltnp`",
        )

    def close(self) -> None:
        """Stop listening. The locks are kept, so that no other task of this machine takes the port."""
        if self._listener is not None:
            if self._loop is not None:
                with contextlib.suppress(RuntimeError):
                    self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        while self._probes:
            _reset(self._probes.popleft())

    def release(self) -> None:
        """Give up the locks, so that other tasks can take the port. Called when the workers have ended."""
        self.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _candidates(self) -> Iterator[int]:
        yield self._preferred
        # These are below the range from which kernels take the ports of outgoing connections.
        yield from (port for port in range(PREFERRED + 1, _LAST) if port != self._preferred)

    def _locked(self, port: int) -> contextlib.ExitStack | None:
        """Take both locks. Returns None if another task has one of them."""
        import fcntl

        with contextlib.ExitStack() as locks:
            if self._locks is not None:
                self._locks.mkdir(mode=0o700, parents=True, exist_ok=True)
                path = self._locks / f"{port}.lock"
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                locks.callback(os.close, lock)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    return None
            namesake = locks.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            try:
                namesake.bind(("127.0.0.1", port))
            except OSError:
                return None
            return locks.pop_all()

    def _drain(self, listener: socket.socket) -> None:
        # Thousands of members may connect as a probe. Accept them, so that the backlog does not fill up.
        import asyncio

        with contextlib.suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(listener, self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        assert self._loop is not None
        while accepted := accept_in_loop(self._loop, self._listener, self._accept):
            self._probes.append(accepted[0])
            # After so many others, the member has closed its end.
            if len(self._probes) > _PROBES_KEPT:
                _reset(self._probes.popleft())


def _reset(probe: socket.socket) -> None:
    # Reset rather than close: a connection closed from this side would keep the port in TIME_WAIT.
    with contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    probe.close()


def listen_everywhere(port: int, address: str) -> socket.socket:
    """Listen on a port of all interfaces, as the frameworks do, and check that `address` belongs to this machine.

    A port that is taken on one interface only could pass a check of another interface, and fail in the framework.
    """
    for family, host in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        try:
            # Without SO_REUSEADDR: torch can use a port with connections in TIME_WAIT, but not every framework can.
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.bind((host, port))
            listener.listen(4096)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            if family == socket.AF_INET6 and error.errno != errno.EADDRINUSE:
                continue
            raise
        try:
            _prove_ours(address)
        except OSError:
            listener.close()
            raise
        return listener
    raise OSError(errno.EAFNOSUPPORT, "this machine has neither IPv4 nor IPv6")


def _prove_ours(address: str) -> None:
    family, kind, _, _, target = socket.getaddrinfo(
        address, 0, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
    )[0]
    with socket.socket(family, kind) as probe:
        probe.bind(target)
