"""One authenticated SSH transport per host and process, shared by everybody who has business there.

A `Link` connects on first use, notices when the host falls silent, and connects again on the next use, waiting the
longer for it the longer it has failed. Channels beyond what sshd allows wait for one another.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from flowlite.connect.ssh import host_keys
from flowlite.connect.ssh.library import paramiko
from flowlite.connect.ssh.login import log_in
from flowlite.connect.ssh.quoting import readable
from flowlite.connect.ssh.targets import SshTarget
from flowlite.connect.ssh.transport import Transport, greet, open_socket, shown, start_proxy
from flowlite.errors import HostKeyError, NodeUnreachable

LOGIN_SECONDS = 20.0
# sshd allows 10 sessions per connection by default (MaxSessions).
SESSIONS = 8
# A session of a command that is being killed takes a while to be free again.
REFUSED_SECONDS = 10.0
LONGEST_PAUSE = 8.0


class Resident(Protocol):
    """Something that keeps a session of its own."""

    def end(self) -> None:
        """Gives it back."""


class Link:
    """The way to one host, for all threads of this process.

    Attributes:
        resident: What keeps a session as long as there are enough of them (courier.py).
        resident_argv: The command by which it was started, to start it again after a transport broke.
        may_reside: Whether there are.
    """

    def __init__(self, target: SshTarget) -> None:
        self.target = target
        self.held = 0
        self._parent: Link | None = None
        self._transport: Transport | None = None
        self._connecting = threading.Lock()
        self._failing_since = 0.0
        self._failed: tuple[float, NodeUnreachable] = (0.0, NodeUnreachable())
        self._next_try = 0.0
        self._turn = threading.Condition()
        self._limit = SESSIONS
        self._open = 0
        self.resident: Resident | None = None
        self.resident_argv: tuple[str, ...] | None = None
        self.may_reside = True

    def transport(self) -> Transport:
        """A living transport, made if there is none. Raises NodeUnreachable."""
        asked = time.monotonic()
        with self._connecting:
            if self._transport is not None and self._transport.is_active():
                return self._transport
            if self._failed[0] > asked:
                # Others tried while we waited for our turn; trying again would only add to the wait.
                before = self._failed[1]
                raise NodeUnreachable(str(before), host=before.host, patience=before.patience)
            self._drop()
            pause = self._next_try - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            try:
                self._transport = self._connect()
            except HostKeyError:
                raise
            except NodeUnreachable as error:
                now = time.monotonic()
                self._failing_since = self._failing_since or asked
                self._failed = (now, error)
                # In proportion: what was away for three seconds must not be missed for three more.
                longest = min(LONGEST_PAUSE, 0.25 + (now - self._failing_since) / 4)
                self._next_try = now + longest * random.uniform(0.5, 1.0)
                raise
            self._failing_since, self._next_try = 0.0, 0.0
            self._limit = SESSIONS
            return self._transport

    def _connect(self) -> Transport:
        transport = self.greet()
        try:
            host_keys.check(self.target, shown(transport))
            transport.auth_timeout = LOGIN_SECONDS
            log_in(transport, self.target)
        except BaseException:
            transport.close()
            raise
        transport.watch()
        return transport

    def greet(self) -> Transport:
        """A new transport that has exchanged keys with the host, and no more. Raises NodeUnreachable."""
        if self.target.jump:
            *before, last = self.target.jump
            if self._parent is None:
                self._parent = acquire(replace(last, jump=tuple(before)))
            try:
                way = self._parent.direct(self.target.host, self.target.port, self.target)
            except HostKeyError as error:
                raise HostKeyError(
                    f"on the way to {self.target.name}, jump {error}",
                    host=error.host,
                    fingerprint=error.fingerprint,
                    changed=error.changed,
                    revoked=error.revoked,
                ) from None
            return greet(self.target, way)
        if self.target.proxy_command is None:
            return greet(self.target, open_socket(self.target))
        sock, proxy = start_proxy(self.target, self.target.proxy_command)
        try:
            transport = greet(self.target, sock)
        except BaseException:
            proxy.kill()
            proxy.wait()
            raise
        transport.proxy = proxy
        return transport

    def _drop(self) -> None:
        if self._transport is not None:
            resident, self.resident = self.resident, None
            if resident is not None:
                resident.end()
            self._transport.close()
            self._transport = None

    # Channels

    @contextmanager
    def session(self, deadline: float | None = None) -> Iterator[paramiko.Channel]:
        """A channel for one command, waiting for its turn.

        Raises:
            NodeUnreachable: The host does not answer, or opens none.
            TimeoutError: Its turn did not come before the deadline.
        """
        with self._turn:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._turn.wait_for(lambda: self._open < self._limit, left):
                raise TimeoutError
            self._open += 1
        channel = None
        try:
            channel = self._open_session(deadline)
            yield channel
        finally:
            if channel is not None:
                channel.close()
            with self._turn:
                self._open -= 1
                self._turn.notify()

    def _open_session(self, deadline: float | None) -> paramiko.Channel:
        patience = time.monotonic() + REFUSED_SECONDS
        fresh = False
        while True:
            transport = self.transport()
            try:
                return transport.ask_channel("session")
            except paramiko.ChannelException as error:
                # This sshd allows fewer than usual: fewer at a time from now on, and wait for one to end.
                if self._evict() or self._yield_turn(deadline):
                    continue
                if time.monotonic() > patience:
                    raise NodeUnreachable(
                        f"host {self.target.label}: sshd opens no session ({readable(error.text)}); look at "
                        "MaxSessions in its sshd_config, and whether the user may run commands",
                        host=self.target.name,
                        # It was refused for long enough, and nobody else is on this connection.
                        patience=0.0,
                    ) from None
                time.sleep(0.1)
            except (paramiko.SSHException, EOFError, OSError) as error:
                self._not_opened(transport, error, fresh)
                fresh = True

    def _not_opened(self, transport: Transport, error: Exception, fresh: bool) -> None:
        """Nothing has begun, so a transport that died unnoticed may be replaced, once. Raises NodeUnreachable."""
        if transport.is_active():
            # It answers, but not to us: slow, or broken. Others who use it may fare better.
            if self._open <= 1:
                transport.close()
            raise self.lost(transport, error) from None
        if fresh:
            raise self.lost(transport, error) from None

    def _evict(self) -> bool:
        """Takes its session from whoever keeps one. False if nobody does."""
        self.may_reside = False
        resident, self.resident = self.resident, None
        if resident is None:
            return False
        resident.end()
        return True

    def _yield_turn(self, deadline: float | None) -> bool:
        """Waits until another channel of ours has ended. False if there is none. Raises TimeoutError."""
        with self._turn:
            others = self._open - 1
            if others < 1:
                return False
            self._limit = min(self._limit, others)
            self._open -= 1
            try:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not self._turn.wait_for(lambda: self._open < self._limit, left):
                    raise TimeoutError
            finally:
                self._open += 1
        return True

    def direct(self, address: str, port: int, towards: SshTarget | None = None) -> paramiko.Channel:
        """A channel that leads on from the host to an address and port.

        Raises:
            NodeUnreachable: The host does not answer or forbids it, or it leads `towards` a host that is not there.
            ConnectionRefusedError: Nobody listens there.
        """
        for fresh in (False, True):
            transport = self.transport()
            try:
                return transport.ask_channel("direct-tcpip", (address, port))
            except paramiko.ChannelException as error:
                raise self._not_led_on(address, port, towards, error) from None
            except (paramiko.SSHException, EOFError, OSError) as error:
                self._not_opened(transport, error, fresh)
        raise AssertionError

    def _not_led_on(
        self, address: str, port: int, towards: SshTarget | None, error: paramiko.ChannelException
    ) -> Exception:
        if error.code == paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED:
            return NodeUnreachable(
                f"host {self.target.label}: sshd forbids connections to {address}:{port} through it; allow them there "
                "with AllowTcpForwarding",
                host=self.target.name,
                patience=0.0,
            )
        if towards is not None:
            return NodeUnreachable(
                f"host {towards.label}: {self.target.name} cannot connect to {address}:{port} ({readable(error.text)})"
            )
        return ConnectionRefusedError(
            f"host {self.target.label}: nothing answers at {address}:{port} ({readable(error.text)})"
        )

    def lost(self, transport: Transport, error: Exception | None = None) -> NodeUnreachable:
        """The error to raise when a transport broke in the middle of something."""
        why = transport.why()
        if error is not None and str(error) and transport.is_active():
            why = f"it does not do what was asked ({readable(str(error))})"
        return NodeUnreachable(
            f"host {self.target.label}: {why}; it is connected to again on the next use"
        )

    # Holding

    def keep(self) -> None:
        """Somebody holds it, or nobody does: then its transport goes after a while."""
        transport = self._transport
        if transport is not None:
            transport.idle_since = None if self.held else time.monotonic()

    def shut(self) -> None:
        """Closes it at once."""
        with self._connecting:
            self._drop()
        parent, self._parent = self._parent, None
        if parent is not None:
            release(parent)


# All links of this process

_links: dict[SshTarget, Link] = {}
_inherited: list[Link] = []
_lock = threading.Lock()


def acquire(target: SshTarget) -> Link:
    """The link to a host. `release` it when done."""
    with _lock:
        _forget_dead()
        link = _links.setdefault(target, Link(target))
        link.held += 1
        link.keep()
        return link


def release(link: Link) -> None:
    """Gives a link back. Its transport stays for a while, for whoever comes next."""
    with _lock:
        link.held -= 1
        link.keep()


def close_idle() -> None:
    """Closes every transport that nobody holds, at once."""
    while True:
        with _lock:
            idle = [target for target, link in _links.items() if link.held <= 0]
            links = [_links.pop(target) for target in idle]
        if not links:
            return
        for link in links:
            link.shut()


def _forget_dead() -> None:
    for target, link in list(_links.items()):
        transport = link._transport
        if link.held <= 0 and (transport is None or not transport.is_active()):
            del _links[target]
            link._drop()
            if link._parent is not None:
                link._parent.held -= 1
                link._parent.keep()


def _after_fork() -> None:
    """In a forked process: the transports' threads are not here, and what it wrote would spoil the parent's streams."""
    global _lock
    _lock = threading.Lock()
    for link in _links.values():
        sock = link._transport.sock if link._transport is not None else None
        if isinstance(sock, socket.socket):
            sock.close()
    # Kept, since a channel that is thrown away says goodbye to the host.
    _inherited.extend(_links.values())
    _links.clear()


os.register_at_fork(after_in_child=_after_fork)
