"""Sessions that a host keeps because it could not hear that they ended.

A connection that is closed during an outage ends on this side only. The kernel repeats its last segments, but ever more
rarely, so sshd may keep the session for a minute or two after the network is back. Whoever reaches the host again ends
it at once: it asks for a connection from the same port. The host answers that there is one, this machine knows of none,
and says so with a reset (RFC 9293, section 3.5.1; RFC 5961, section 4).
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
import termios
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Address = tuple[Any, ...]

# So long a host that does not answer is told of the end; later it is left to sshd's own time-outs.
REPEATED_SECONDS = 600.0
# Less than the second after which the kernel asks again: one question is enough for a host that answers.
_ASK_SECONDS = 0.9
_CLOSE_WITHOUT_A_WORD = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Ends:
    """Both addresses of a TCP connection."""

    here: Address
    there: Address


@dataclass(frozen=True, slots=True)
class _HalfOpen:
    """A connection that has ended here; `sock` keeps the kernel repeating it."""

    sock: socket.socket
    ends: Ends
    since: float


_all: dict[Ends, _HalfOpen] = {}
_lock = threading.Lock()


def ends_of(sock: Any) -> Ends | None:
    """The addresses of a connected TCP socket; None for anything else, such as a way through a jump host."""
    if not isinstance(sock, socket.socket) or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        return Ends(tuple(sock.getsockname()), tuple(sock.getpeername()))
    except OSError:
        return None


def leave(sock: Any, ends: Ends | None) -> None:
    """Ends a connection. The kernel goes on telling the host for some minutes, should it not answer now."""
    if ends is None:
        return
    with suppress(OSError, ValueError), _lock:
        _forget()
        if ends not in _all:
            _all[ends] = _HalfOpen(sock.dup(), ends, time.monotonic())
    with suppress(AttributeError, OSError, ValueError):
        limit = int(1000 * REPEATED_SECONDS)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
    with suppress(OSError, ValueError):
        sock.shutdown(socket.SHUT_RDWR)


def end(there: Address) -> None:
    """Ends the sessions that a host still has of connections that have ended here. To be called when it answers."""
    with _lock:
        _forget()
        found = [_all.pop(ends) for ends in list(_all) if ends.there == there]
    if found:
        # Nobody waits for it: the host is in use again already.
        threading.Thread(
            target=_end_all, args=(found,), name="flowlite-half-open", daemon=True
        ).start()


def _after_fork() -> None:
    """A forked process leaves the connections of its parent alone."""
    global _lock
    _lock = threading.Lock()
    for each in _all.values():
        each.sock.close()
    _all.clear()


def _end_all(found: list[_HalfOpen]) -> None:
    for each in found:
        with suppress(OSError):
            _end(each)


def _end(each: _HalfOpen) -> None:
    with each.sock:
        # What was never sent is thrown away, and the port is free.
        each.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_WITHOUT_A_WORD)
    with socket.socket(each.sock.family, socket.SOCK_STREAM) as asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        asking.bind(each.ends.here)
        asking.settimeout(_ASK_SECONDS)
        asking.connect(each.ends.there)


def _is_acknowledged(sock: socket.socket) -> bool:
    """Whether the host has got all that was sent, the end of the connection included."""
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)
    return count[0] == 0


def _forget() -> None:
    """Leaves alone what the host knows of, and what is too old to be repeated."""
    for ends, each in list(_all.items()):
        if _is_acknowledged(each.sock) or time.monotonic() - each.since > REPEATED_SECONDS:
            _all.pop(ends).sock.close()


os.register_at_fork(after_in_child=_after_fork)
