"""Ends SSH sessions that a host keeps because the end of their connection never reached it.

A connection that is closed during an outage ends on this side only. The kernel retransmits its last segments ever more
rarely, and stops once it has given the connection up, so sshd may keep the session for minutes or hours after the
network is back. A thread of this process therefore watches each closed connection until the host has acknowledged its
end. If that takes longer than a moment, the thread discards the unacknowledged segments and requests a connection from
the same port until the host answers. A host that still has the old connection acknowledges it; this machine knows of no
such connection and answers with a reset (RFC 9293, section 3.5.1; RFC 5961, section 4). The host accepts the next
request, or refuses it itself: both prove that the old connection is gone.

A process that exits leaves this work to a deputy: a new process, which runs this file, has nothing but a list of
addresses, and ends by itself. A process that is killed cannot start one. It therefore has a deputy as soon as a host
does not answer, and as long as that lasts (`doubt`); the deputy begins when its standard input ends. If a process is
killed before that, the courier on the host ends the session, if there is one; its heartbeats have stopped.
"""

from __future__ import annotations

import array
import atexit
import errno
import fcntl
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import weakref
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Address = tuple[Any, ...]

# How long the end is repeated to a host that does not answer; after that, sshd and the courier have to notice it.
REPEATED_SECONDS = 600.0
# A host within reach acknowledges the end of a connection within this time.
_ACKNOWLEDGED_SECONDS = 1.0
# The kernel repeats a connection request after one second: the first ends the old connection, the second is accepted.
_ANSWERED_SECONDS = 2.5
_PAUSE_SECONDS = 3.0
_SOON_SECONDS = 0.005
_CLOSE_WITH_A_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class TcpAddresses:
    """The local and remote address of a TCP connection."""

    here: Address
    there: Address


@dataclass(slots=True)
class _HalfOpen:
    """A connection that has ended on this side. `sock` is None once the kernel has been told to forget it."""

    ends: TcpAddresses
    sock: socket.socket | None
    since: float = field(default_factory=time.monotonic)


_open: weakref.WeakKeyDictionary[socket.socket, TcpAddresses] = weakref.WeakKeyDictionary()
_all: dict[TcpAddresses, _HalfOpen] = {}
_doubted: set[TcpAddresses] = set()
_deputy: subprocess.Popen[bytes] | None = None
_lock = threading.Lock()
_telling: threading.Thread | None = None


def note(sock: Any) -> TcpAddresses | None:
    """Notes a new connection.

    Returns:
        The addresses of a connected TCP socket; None for anything else, such as a channel through a jump host.
    """
    if not isinstance(sock, socket.socket) or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        ends = TcpAddresses(tuple(sock.getsockname()), tuple(sock.getpeername()))
    except OSError:
        return None
    with _lock:
        _open[sock] = ends
    return ends


def doubt(ends: TcpAddresses | None) -> None:
    """Has a deputy end the connection if this process is killed. The host does not answer at present."""
    if ends is not None:
        with _lock:
            _doubt([ends])


def trust(ends: TcpAddresses | None) -> None:
    """Ends the doubt, since the host has answered."""
    if ends is not None:
        with _lock:
            _trust(ends)


def leave(sock: Any, ends: TcpAddresses | None) -> None:
    """Closes a connection, and repeats its end to the host for some minutes if it does not answer now."""
    if ends is None:
        return
    with suppress(OSError, ValueError), _lock:
        _open.pop(sock, None)
        if ends not in _all:
            _all[ends] = _HalfOpen(ends, sock.dup())
            _begin_to_tell()
    with suppress(OSError, ValueError):
        sock.shutdown(socket.SHUT_RDWR)


def leave_all() -> None:
    """Closes all connections of this process, which exits now.

    A new process repeats the ends that no host acknowledges. Registered with `atexit`; to be called before `os._exit`.
    """
    with _lock:
        connections = list(_open.items())
    for sock, ends in connections:
        leave(sock, ends)
    try:
        while fresh := _unacknowledged():
            time.sleep(_SOON_SECONDS)
            if time.monotonic() - max(each.since for each in fresh) > _ACKNOWLEDGED_SECONDS:
                break
        with _lock:
            left = list(_all.values())
            # The deputy uses their ports.
            for each in left:
                _have_kernel_forget(each)
            _all.clear()
            ended = _doubted.difference(each.ends for each in left)
            _doubt([each.ends for each in left])
            for ends in ended:
                _trust(ends)
    except (OSError, ValueError):
        # The courier on the host, or sshd, has to notice.
        return


def _unacknowledged() -> list[_HalfOpen]:
    """Forgets acknowledged ends. Returns those that the kernel still repeats."""
    with _lock:
        for ends in [ends for ends, each in _all.items() if _is_over(each)]:
            _forget(ends)
        return [each for each in _all.values() if each.sock is not None]


def _doubt(those: Iterable[TcpAddresses]) -> None:
    fresh = set(those) - _doubted
    _doubted.update(fresh)
    _tell_deputy(fresh)


def _trust(ends: TcpAddresses) -> None:
    if ends in _doubted:
        _doubted.discard(ends)
        _tell_deputy({ends})


def _tell_deputy(changed: set[TcpAddresses]) -> None:
    """Tells the deputy which connections to end after this process.

    Starts the deputy for the first connection, and ends it after the last.
    """
    global _deputy
    if _deputy is not None and (not _doubted or _deputy.poll() is not None):
        _deputy.kill()
        _deputy.wait()
        _close_pipe(_deputy)
        _deputy = None
    if not changed or not _doubted or not sys.executable:
        return
    with suppress(OSError):
        if _deputy is None:
            _deputy, changed = _start(), _doubted
        assert _deputy.stdin is not None
        for ends in changed:
            line = json.dumps([ends.here, ends.there, ends in _doubted])
            _deputy.stdin.write(line.encode() + b"\n")


def _close_pipe(deputy: subprocess.Popen[bytes]) -> None:
    if deputy.stdin is not None:
        deputy.stdin.close()


def _start() -> subprocess.Popen[bytes]:
    """Starts a process that outlives this one, its terminal and its directory."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,
    )


def main() -> None:
    """Repeats the ends of connections of a process, once that has ended.

    Each line of standard input is JSON: [here, there, whether it is to be ended].
    """
    for line in sys.stdin.buffer:
        # A process that was killed while it wrote leaves a line without its end.
        if line.endswith(b"\n"):
            here, there, wanted = json.loads(line)
            ends = TcpAddresses(tuple(here), tuple(there))
            if wanted:
                _all[ends] = _HalfOpen(ends, None)
            else:
                _all.pop(ends, None)
    now = time.monotonic()
    for each in _all.values():
        each.since = now
    _tell_all()


def _begin_to_tell() -> None:
    global _telling
    if _telling is None:
        _telling = threading.Thread(target=_tell_all, name="flowlite-half-open", daemon=True)
        try:
            _telling.start()
        except RuntimeError:
            # No thread can be started now. The next call tries again.
            _telling = None


def _tell_all() -> None:
    """Repeats the ends of connections to their hosts, until each has acknowledged or has been silent for too long."""
    global _telling
    pause = _ACKNOWLEDGED_SECONDS
    while True:
        time.sleep(pause)
        with _lock:
            for ends in [ends for ends, each in _all.items() if _is_over(each)]:
                _forget(ends)
            if not _all:
                _telling = None
                return
            asked = [
                each
                for each in _all.values()
                if time.monotonic() - each.since >= _ACKNOWLEDGED_SECONDS
            ]
            for each in asked:
                _have_kernel_forget(each)
            if _telling is not None:
                _doubt([each.ends for each in asked])
        answered = _ask([each.ends for each in asked])
        with _lock:
            for ends in answered:
                _forget(ends)
            fresh = any(each.sock is not None for each in _all.values())
        pause = _ACKNOWLEDGED_SECONDS if fresh else _PAUSE_SECONDS


def _is_over(each: _HalfOpen) -> bool:
    if time.monotonic() - each.since > REPEATED_SECONDS:
        return True
    return each.sock is not None and _is_acknowledged(each.sock)


def _is_acknowledged(sock: socket.socket) -> bool:
    """Whether the host has acknowledged all data, the end of the connection included."""
    count = array.array("i", [0])
    fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, count)
    return count[0] == 0


def _have_kernel_forget(each: _HalfOpen) -> None:
    """Discards the unacknowledged data and frees the port."""
    if each.sock is None:
        return
    with each.sock, suppress(OSError):
        each.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_WITH_A_RESET)
    each.sock = None


def _forget(ends: TcpAddresses) -> None:
    each = _all.pop(ends, None)
    if each is not None and each.sock is not None:
        each.sock.close()
    _trust(ends)


def _ask(asked: Iterable[TcpAddresses]) -> list[TcpAddresses]:
    """Requests connections from the ports of old ones. Returns those whose hosts answered."""
    answered = []
    with selectors.DefaultSelector() as waiting:
        for ends in asked:
            if (sock := _request(ends)) is not None:
                waiting.register(sock, selectors.EVENT_WRITE, ends)
        deadline = time.monotonic() + _ANSWERED_SECONDS
        while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                waiting.unregister(key.fileobj)
                if _is_answered(key.fileobj):
                    answered.append(key.data)
        for key in list(waiting.get_map().values()):
            _close(key.fileobj)
    return answered


def _request(ends: TcpAddresses) -> socket.socket | None:
    """A socket that requests a connection; None if that is not possible now."""
    family = socket.AF_INET6 if len(ends.here) == 4 else socket.AF_INET
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_WITH_A_RESET)
        sock.setblocking(False)
        # Another program may use the port for a while, or this machine may have another address.
        sock.bind(ends.here)
        if sock.connect_ex(ends.there) in (0, errno.EINPROGRESS):
            return sock
    except OSError:
        pass
    sock.close()
    return None


def _is_answered(sock: Any) -> bool:
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    _close(sock)
    return error in (0, errno.ECONNREFUSED)


def _close(sock: Any) -> None:
    with suppress(OSError):
        sock.close()


def _after_fork() -> None:
    """Runs in a forked process, which leaves the connections of its parent alone."""
    global _lock, _telling, _deputy
    _lock, _telling = threading.Lock(), None
    if _deputy is not None:
        # It waits for the end of the parent.
        _close_pipe(_deputy)
    _deputy = None
    _doubted.clear()
    for each in _all.values():
        if each.sock is not None:
            each.sock.close()
    _all.clear()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(leave_all)

if __name__ == "__main__":
    main()
