"""One authenticated SSH transport per host and process, shared by all connections to the host.

A `Link` connects on first use, detects when the host stops answering, and connects again on the next use, with a pause
that grows with the duration of the failure. Channels beyond what sshd allows wait for one another.
"""

from __future__ import annotations

import math
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
from flowlite.node.system.accepting import allow_descriptors

LOGIN_SECONDS = 20.0
# sshd allows 10 sessions per connection by default (MaxSessions).
SESSIONS = 8
# The session of a command that is being killed takes a while to become free.
REFUSED_SECONDS = 10.0
LONGEST_PAUSE = 8.0
# What a process opens besides the connection to each host.
_OTHER_DESCRIPTORS = 512


class LinkUser(Protocol):
    """A user of a link that keeps a session open."""

    def end(self) -> None:
        """Closes its session."""


class Link:
    """The transport to one host, for all threads of this process.

    Attributes:
        resident: The courier, which keeps a session open as long as there are enough of them (`courier.py`).
        resident_argv: The command that started it, to start it again after a transport broke.
        may_reside: Whether there are enough sessions for a courier.
    """

    def __init__(self, target: SshTarget) -> None:
        self.target = target
        self.held = 0
        self._parent: Link | None = None
        self._received_before = 0
        self._transport: Transport | None = None
        self._connecting = threading.Lock()
        self._failing_since = 0.0
        self._failed: tuple[float, NodeUnreachable] = (0.0, NodeUnreachable())
        self._next_try = 0.0
        self._turn = threading.Condition()
        self._limit = SESSIONS
        self._open = 0
        self.resident: LinkUser | None = None
        self.resident_argv: tuple[str, ...] | None = None
        self.may_reside = True

    def transport(self) -> Transport:
        """Returns a live transport, connecting if necessary. Raises NodeUnreachable."""
        asked = time.monotonic()
        with self._connecting:
            if self._transport is not None and self._transport.is_active():
                return self._transport
            if self._failed[0] > asked:
                # Another thread failed while this one waited for the lock; trying again would only add to the wait.
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
                # In proportion to the outage, so that a host that was away for three seconds is not missed for three
                # more.
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
        """A new transport that has exchanged keys with the host but is not authenticated. Raises NodeUnreachable."""
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

    @property
    def received(self) -> int:
        """How many bytes of data have come through channels, also of earlier transports."""
        transport = self._transport
        return self._received_before + (0 if transport is None else transport.received)

    def _drop(self) -> None:
        if self._transport is not None:
            self._received_before += self._transport.received
            resident, self.resident = self.resident, None
            if resident is not None:
                resident.end()
            self._transport.close()
            self._transport = None

    # Channels

    @contextmanager
    def session(self, deadline: float | None = None) -> Iterator[paramiko.Channel]:
        """A channel for one command; waits until one is free.

        Raises:
            NodeUnreachable: The host does not answer, or opens no channel.
            TimeoutError: No channel was free before the deadline.
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
                _drop_unread(channel)
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
                # This sshd allows fewer sessions than usual: lower the limit, and wait for one to end.
                if self._evict() or self._yield_turn(deadline):
                    continue
                if time.monotonic() > patience:
                    raise NodeUnreachable(
                        f"host {self.target.label}: sshd opens no session ({readable(error.text)}); look at "
                        "MaxSessions in its sshd_config, and whether the user may run commands",
                        host=self.target.name,
                        # It was refused for REFUSED_SECONDS, with no other session on this connection.
                        patience=0.0,
                    ) from None
                time.sleep(0.1)
            except (paramiko.SSHException, EOFError, OSError) as error:
                self._not_opened(transport, error, fresh)
                fresh = True

    def _not_opened(self, transport: Transport, error: Exception, fresh: bool) -> None:
        """Handles a channel that did not open: a dead transport is replaced, once. Raises NodeUnreachable."""
        if transport.is_active():
            # The transport lives, but this channel was not opened. Others who use it may have more success.
            if self._open <= 1:
                transport.close()
            raise self.lost(transport, error) from None
        if fresh:
            raise self.lost(transport, error) from None

    def _evict(self) -> bool:
        """Closes the session of the courier. False if there is none."""
        self.may_reside = False
        resident, self.resident = self.resident, None
        if resident is None:
            return False
        resident.end()
        return True

    def _yield_turn(self, deadline: float | None) -> bool:
        """Waits until another channel of this link has ended. False if there is none. Raises TimeoutError."""
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
        """Opens a channel from the host to an address and port.

        Raises:
            NodeUnreachable: The host does not answer or forbids it, or `towards`, the host behind it, is not there.
            ConnectionRefusedError: Nothing listens there.
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
                "with AllowTcpForwarding, and without DisableForwarding and PermitOpen in its sshd_config or "
                "`restrict` and `no-port-forwarding` beside your key in authorized_keys",
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
        """The error for a transport that broke during an operation."""
        why = transport.why()
        if error is not None and str(error) and transport.is_active():
            why = f"it does not do what was asked ({readable(str(error))})"
        return NodeUnreachable(
            f"host {self.target.label}: {why}; it is connected to again on the next use"
        )

    # Users of the link

    def keep(self) -> None:
        """Notes whether the link is in use; the transport of an unused link is closed after a while."""
        transport = self._transport
        if transport is not None:
            transport.idle_since = None if self.held else time.monotonic()

    def shut(self) -> None:
        """Closes the transport now."""
        with self._connecting:
            self._drop()
        parent, self._parent = self._parent, None
        if parent is not None:
            release(parent)


# All links of this process

_links: dict[SshTarget, Link] = {}
_inherited: list[Link] = []
_lock = threading.Lock()
_FORGET_SECONDS = 1.0
_all_looked_at = -math.inf


def _drop_unread(channel: paramiko.Channel) -> None:
    """Frees the output of a channel that nobody will read; a host may have filled its window."""
    for buffer in (channel.in_buffer, channel.in_stderr_buffer):
        buffer.empty()


def acquire(target: SshTarget) -> Link:
    """Returns the link to a host. Call `release` when done."""
    with _lock:
        _forget_dead(target)
        link = _links.setdefault(target, Link(target))
        allow_descriptors(len(_links) + _OTHER_DESCRIPTORS)
        link.held += 1
        link.keep()
        return link


def release(link: Link) -> None:
    """Releases a link. Its transport stays open for a while for the next user."""
    with _lock:
        link.held -= 1
        link.keep()


def close_idle() -> None:
    """Closes every unused transport now."""
    while True:
        with _lock:
            idle = [target for target, link in _links.items() if link.held <= 0]
            links = [_links.pop(target) for target in idle]
        if not links:
            return
        for link in links:
            link.shut()


def _forget_dead(target: SshTarget) -> None:
    """Forgets the unused links whose transport has ended: that to this host, and now and then all of them."""
    global _all_looked_at
    now = time.monotonic()
    # A gang of a thousand hosts uses a link five thousand times.
    looks_at_all = now - _all_looked_at > _FORGET_SECONDS
    if looks_at_all:
        _all_looked_at = now
    for each in list(_links) if looks_at_all else [target]:
        link = _links.get(each)
        if link is None or link.held > 0:
            continue
        transport = link._transport
        if transport is None or not transport.is_active():
            del _links[each]
            link._drop()
            if link._parent is not None:
                link._parent.held -= 1
                link._parent.keep()


def _after_fork() -> None:
    """Runs in a forked process, which has no transport threads and must not write to the parent's streams."""
    global _lock
    _lock = threading.Lock()
    for link in _links.values():
        sock = link._transport.sock if link._transport is not None else None
        if isinstance(sock, socket.socket):
            sock.close()
    # References are kept, since paramiko sends a close message when a channel is garbage-collected.
    _inherited.extend(_links.values())
    _links.clear()


os.register_at_fork(after_in_child=_after_fork)
