"""An SSH transport to one host: how it is opened, and how its failure is detected.

paramiko does the work. This module adds keepalives, the reason for a refused channel, and the signal that killed a
command.
"""

from __future__ import annotations

import logging
import math
import socket
import subprocess
import threading
import time
from contextlib import suppress
from typing import Any

from flowlite.connect.ssh import half_open, host_keys, tcp_segments
from flowlite.connect.ssh.library import paramiko
from flowlite.connect.ssh.quoting import readable
from flowlite.connect.ssh.targets import SshTarget
from flowlite.errors import NodeUnreachable

CONNECT_SECONDS = 10.0
HANDSHAKE_SECONDS = 15.0
CHANNEL_SECONDS = 60.0
# The interval between keepalives, and how many may go unanswered.
PULSE_SECONDS = 5.0
UNANSWERED = 3
# How long an unused transport stays open for the next user.
IDLE_SECONDS = 30.0
# Receive window in bytes: enough for 100 MB/s at 80 ms.
WINDOW = 8 * 1024 * 1024

# The default order starts with ciphers that need a separate MAC; AES-GCM is twice as fast.
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
_PROXY_SECONDS = 2.0
# A host that falls silent within this time after the login may have got, or sent, its first full packet.
_SOON_SECONDS = 10.0
# As in OpenSSH. Data of channels comes in packets of 32 KiB.
_LARGEST_PACKET = 256 * 1024
# Enough for an answer. Each connection that waits holds as much memory.
_READ_AHEAD = 4 * 1024

# Lower its level to debug; errors reach the user as exceptions.
LOG = "flowlite.ssh"
if logging.getLogger(LOG).level == logging.NOTSET:
    logging.getLogger(LOG).setLevel(logging.CRITICAL)


class _HostSilent(EOFError):
    """The host did not answer for too long."""


class _ReadAhead:
    """A socket for a packetizer. It returns all that has come, also if fewer bytes are asked for.

    Attributes:
        least: How many bytes are asked for at least.
    """

    def __init__(self, sock: Any) -> None:
        self._receive = sock.recv
        self.send = sock.send
        self.close = sock.close
        # A greeting without end is read slowly, and given up before it takes much memory.
        self.least = 0

    def recv(self, size: int) -> bytes:
        found: bytes = self._receive(max(size, self.least))
        return found


class _Packets(paramiko.packet.Packetizer):
    """A packetizer with keepalives: a silent host is asked, and given up if it does not answer."""

    transport: Transport | None = None
    ends: half_open.TcpAddresses | None = None
    unanswered = 0
    asked = 0.0
    watched = 0.0
    data = 0
    before_greeting = ""
    _handshake_until: float | None = None

    def __init__(self, sock: Any) -> None:
        reading: Any = _ReadAhead(sock)
        super().__init__(reading)
        self._sock, self._reading = sock, reading
        # What has come and was not asked for yet begins at `_begin`.
        self._came = b""
        self._begin = 0

    # paramiko starts a thread for each handshake to notice that it takes too long.

    def start_handshake(self, timeout: float) -> None:
        if self._handshake_until is None:
            self._handshake_until = time.monotonic() + timeout

    def handshake_timed_out(self) -> bool:
        return self._handshake_until is not None and time.monotonic() > self._handshake_until

    def complete_handshake(self) -> None:
        if self._handshake_until is not None:
            self._handshake_until = math.inf

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        if n > _LARGEST_PACKET:
            # paramiko would read on, and hold it all.
            raise paramiko.SSHException(f"it sends a packet of {n:,} bytes")
        # A message is read in two or three parts, each of which would take two calls of the system.
        end = self._begin + n
        if end > len(self._came):
            self._reading.least = _READ_AHEAD
            rest = self._came[self._begin :]
            self._came, self._begin, end = b"", 0, n
            # It reads until it has at least as much.
            self._came = rest + super().read_all(n - len(rest), check_rekey and not rest)
        begin, self._begin = self._begin, end
        return self._came[begin:end]

    def readline(self, timeout: float) -> str:
        line: str = super().readline(timeout)
        if not line.startswith("SSH-"):
            # An sshd that refuses a connection says why in the place of its greeting, which paramiko only logs.
            self.before_greeting = line
        return line

    def read_message(self) -> Any:
        message = super().read_message()
        if message[0] == paramiko.common.MSG_CHANNEL_DATA:
            self.data += message[1].packet.getbuffer().nbytes
        if self.unanswered > 1:
            half_open.trust(self.ends)
        self.unanswered = 0
        self.asked = time.monotonic()
        return message

    def close(self) -> None:
        half_open.leave(self._sock, self.ends)
        super().close()

    def _check_keepalive(self) -> None:
        transport, now = self.transport, time.monotonic()
        if transport is None or now - self.asked < PULSE_SECONDS:
            return
        if self.unanswered >= UNANSWERED:
            if self.ends is not None:
                tcp_segments.fell_silent(self.ends.there)
            silent = self.unanswered * PULSE_SECONDS
            # It was hardly logged in to.
            soon = now - self.watched < silent + _SOON_SECONDS
            advice = f", right after the login; {tcp_segments.ADVICE}" if soon else ""
            raise _HostSilent(f"it has not answered for {silent:.0f} s{advice}")
        self.asked = now
        self.unanswered += 1
        if self.unanswered == 2:
            half_open.doubt(self.ends)
        transport.keepalive()


def stay_idle(seconds: float) -> None:
    """Keeps unused transports open for at least `seconds`."""
    global IDLE_SECONDS
    IDLE_SECONDS = max(IDLE_SECONDS, seconds)


class Transport(paramiko.Transport):
    """A transport that records the signal that killed a command, and detects when the host stops answering."""

    # How often its thread wakes while nothing arrives: to send keepalives in time. `close` below does not wait for it.
    _active_check_timeout = PULSE_SECONDS / 2

    def __init__(self, sock: Any) -> None:
        super().__init__(sock, default_window_size=WINDOW, packetizer_class=_Packets)
        self._channel_handler_table = {
            **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
            paramiko.common.MSG_CHANNEL_REQUEST: _note_request,
            paramiko.common.MSG_CHANNEL_DATA: _take_data,
            paramiko.common.MSG_CHANNEL_EXTENDED_DATA: _take_extended_data,
            paramiko.common.MSG_CHANNEL_CLOSE: _note_close,
        }
        self.set_log_channel(LOG)
        self.ends = half_open.note(sock)
        self._made = time.monotonic()
        packets: _Packets = self.packetizer  # type: ignore[assignment]
        packets.ends = self.ends
        self.idle_since: float | None = None
        self.proxy: subprocess.Popen[bytes] | None = None
        # Which thread waits for which channel, in both directions, and the refusals.
        self._asked: dict[int, int] = {}
        self._askers: dict[int, int] = {}
        self._refusals: dict[int, paramiko.ChannelException] = {}

    def _filter_algorithm(self, kind: str) -> tuple[str, ...]:
        # paramiko leaves out what is disabled, which is nothing, 16 times for each connection.
        preferred: tuple[str, ...] = getattr(self, f"_preferred_{kind}")
        return preferred

    def get_exception(self) -> Exception | None:
        """Returns the error that ended the connection. Threads that wait for an answer raise it.

        paramiko's parsing of an invalid message may raise any exception, such as UnicodeDecodeError.
        """
        error = super().get_exception()
        if error is None or isinstance(error, paramiko.SSHException | EOFError | OSError):
            return error
        return paramiko.SSHException(
            f"it sends an invalid message ({type(error).__name__}: {error})"
        )

    def greeted_for(self) -> float:
        """For how many seconds it has been there."""
        return time.monotonic() - self._made

    def watch(self) -> None:
        """Starts the keepalives."""
        packets: _Packets = self.packetizer  # type: ignore[assignment]
        packets.asked = packets.watched = time.monotonic()
        packets.transport = self

    @property
    def received(self) -> int:
        """How many bytes of data have come through channels, those that were given up included."""
        packets: _Packets = self.packetizer  # type: ignore[assignment]
        return packets.data

    def keepalive(self) -> None:
        """Sends a keepalive, unless a writer is busy; closes the transport if it has been unused for too long."""
        if self.idle_since is not None and time.monotonic() - self.idle_since > IDLE_SECONDS:
            raise EOFError("not needed any more")
        lock = getattr(self.packetizer, "_Packetizer__write_lock", None)
        if lock is None or not self.clear_to_send.is_set() or not lock.acquire(blocking=False):
            return
        try:
            message = paramiko.Message()
            message.add_byte(paramiko.common.cMSG_GLOBAL_REQUEST)
            message.add_string("keepalive@openssh.com")
            message.add_boolean(True)
            self._send_message(message)  # type: ignore[attr-defined]
        finally:
            lock.release()

    def _send_user_message(self, data: Any) -> None:
        # A connection that died a moment ago accepts no more writes, as one that is known to be dead; threads that wait
        # for an answer are told why it died.
        with suppress(EOFError, OSError):
            super()._send_user_message(data)  # type: ignore[misc]

    def ask_channel(self, kind: str, to: tuple[str, int] | None = None) -> paramiko.Channel:
        """Opens a channel.

        Raises:
            paramiko.ChannelException: The channel was refused, with its own reason; paramiko keeps one for all.
            paramiko.SSHException: There was no answer.
        """
        caller = threading.get_ident()
        self._refusals.pop(caller, None)
        try:
            here = ("127.0.0.1", 0) if to else None
            return self.open_channel(kind, to, here, timeout=CHANNEL_SECONDS)
        except paramiko.SSHException as error:
            raise self._refusals.pop(caller, error) from None
        finally:
            self._askers.pop(self._asked.pop(caller, -1), None)

    def _next_channel(self) -> int:
        number: int = super()._next_channel()  # type: ignore[misc]
        caller = threading.get_ident()
        self._asked[caller], self._askers[number] = number, caller
        return number

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        position = message.packet.tell()
        caller = self._askers.get(message.get_int(), 0)
        self._refusals[caller] = paramiko.ChannelException(message.get_int(), message.get_text())
        message.packet.seek(position)
        super()._parse_channel_open_failure(message)  # type: ignore[misc]

    def close(self) -> None:
        half_open.leave(self.sock, self.ends)
        # Wakes a reader at once; closing alone does not.
        with suppress(Exception):
            self.sock.shutdown(socket.SHUT_RDWR)
        super().close()
        if self.proxy is not None:
            self.proxy.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.proxy.wait(_PROXY_SECONDS)
                return
            self.proxy.kill()
            self.proxy.wait()

    def _log(self, level: int, msg: Any, *args: Any) -> None:
        # paramiko calls this for each message. The level is enabled only where a connection is debugged.
        if self.logger.isEnabledFor(level):
            super()._log(level, msg, *args)  # type: ignore[misc]

    def _parse_debug(self, message: paramiko.Message) -> None:
        # sshd explains each login in such messages, which are only logged.
        if self.logger.isEnabledFor(logging.DEBUG):
            super()._parse_debug(message)  # type: ignore[misc]

    def why(self) -> str:
        """The reason why the transport ended, as a clause."""
        error = self.saved_exception
        if error is None or (isinstance(error, EOFError) and not str(error)):
            return "the connection was closed"
        return f"the connection broke: {readable(str(error))}"


def _note_request(channel: Any, message: paramiko.Message) -> None:
    """Records `exit-signal`, which paramiko ignores, and passes other requests on."""
    position = message.packet.tell()
    if message.get_text() == "exit-signal":
        message.get_boolean()
        channel.exit_signal = message.get_text()
    message.packet.seek(position)
    paramiko.Channel._handle_request(channel, message)  # type: ignore[attr-defined]


def _note_close(channel: Any, message: paramiko.Message) -> None:
    """Records that the host has closed a channel, after which none of its output is missing.

    paramiko also closes the channels of a connection that broke, perhaps with an exit status: sshd sends it as soon as
    the command has ended, ahead of output that still waits.
    """
    channel.closed_by_host = True
    paramiko.Channel._handle_close(channel, message)  # type: ignore[attr-defined]


def _take_data(channel: Any, message: paramiko.Message) -> None:
    """Stores output, unless nobody reads it any more: a host may fill the window of a channel that was given up."""
    if not channel.closed:
        paramiko.Channel._feed(channel, message)  # type: ignore[attr-defined]
        _check_window(channel)


def _take_extended_data(channel: Any, message: paramiko.Message) -> None:
    """Like `_take_data`, for standard error."""
    if not channel.closed:
        paramiko.Channel._feed_extended(channel, message)  # type: ignore[attr-defined]
        _check_window(channel)


def _check_window(channel: Any) -> None:
    """Raises SSHException, which ends the connection, if a host sends more than it may; paramiko stores everything."""
    if len(channel.in_buffer) + len(channel.in_stderr_buffer) > channel.in_window_size:
        raise paramiko.SSHException("the host sends more than it may")


def open_socket(target: SshTarget) -> socket.socket:
    """Opens a TCP connection to the host's sshd. Raises NodeUnreachable."""
    try:
        sock = _connected(target)
    except (socket.gaierror, UnicodeError) as error:
        # A label that is empty or too long cannot even be asked for.
        why = error.strerror if isinstance(error, OSError) else "no name can be written so"
        raise NodeUnreachable(
            f"host {target.label}: the name {target.host!r} is not known ({why}); give an address, or set "
            f"HostName for it in {target.config_file or '~/.ssh/config'}"
        ) from None
    except (TimeoutError, OSError) as error:
        why = (
            f"no answer within {CONNECT_SECONDS:.0f} s"
            if isinstance(error, TimeoutError)
            else error.strerror or str(error)
        )
        raise NodeUnreachable(
            f"host {target.label}: cannot connect to {target.host} port {target.port}: {why}; look whether it is up, "
            "and whether a firewall or another port is in the way"
        ) from None
    # Otherwise each command waits 40 ms for an acknowledgement.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    with suppress(AttributeError, OSError):
        # Also detects a dead host when a full buffer blocks the keepalive.
        limit = int(1000 * PULSE_SECONDS * (UNANSWERED + 1))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit)
    return sock


def _connected(target: SshTarget) -> socket.socket:
    """Connects to the first address that answers, of the kind and from the address that the configuration names."""
    family = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}.get(target.family, 0)
    found = socket.getaddrinfo(target.host, target.port, family, socket.SOCK_STREAM)
    failed = OSError("it has no address")
    for kind, how, protocol, _, address in found:
        sock = None
        try:
            # A system without IPv6 refuses the socket itself.
            sock = socket.socket(kind, how, protocol)
            sock.settimeout(CONNECT_SECONDS)
            tcp_segments.limit(sock, address)
            if target.bind_address:
                sock.bind((target.bind_address, 0))
            sock.connect(address)
            return sock
        except OSError as error:
            failed = error
            if sock is not None:
                sock.close()
    raise failed


def start_proxy(target: SshTarget, command: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Starts a ProxyCommand, connected to the other end of the returned socket. Raises NodeUnreachable."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise NodeUnreachable(f"host {target.label}: ProxyCommand: {error}") from None
    return ours, process


def greet(target: SshTarget, sock: Any) -> Transport:
    """Exchanges keys with the host, before anything of ours is sent. Raises NodeUnreachable."""
    transport = Transport(sock)
    transport.name = f"flowlite-ssh {target.name}"
    transport.banner_timeout = HANDSHAKE_SECONDS
    transport.handshake_timeout = HANDSHAKE_SECONDS
    options = transport.get_security_options()
    known = dict.fromkeys(entry.key.kind for entry in host_keys.known(target) if not entry.revoked)
    options.key_types = _known_first(options.key_types, known)
    options.ciphers = _first(options.ciphers, _CIPHERS)
    try:
        transport.start_client(timeout=HANDSHAKE_SECONDS)
    except (paramiko.SSHException, EOFError, OSError) as error:
        transport.close()
        raise NodeUnreachable(f"host {target.label}: {_no_greeting(error, transport)}") from None
    # paramiko returns normally when its timeout expires.
    if not transport.initial_kex_done:
        transport.close()
        raise NodeUnreachable(f"host {target.label}: {_no_greeting(EOFError(), transport)}")
    return transport


def _no_greeting(error: BaseException, transport: Transport) -> str:
    text = str(error)
    packets: _Packets = transport.packetizer  # type: ignore[assignment]
    said = readable(packets.before_greeting)
    if transport.remote_version and transport.greeted_for() >= HANDSHAKE_SECONDS:
        if transport.ends is not None:
            tcp_segments.fell_silent(transport.ends.there)
        return (
            f"it greets as SSH, and then sends nothing for {HANDSHAKE_SECONDS:.0f} s; the host may be overloaded or "
            f"hang; {tcp_segments.ADVICE}"
        )
    if isinstance(error, EOFError) or "banner" in text.lower() or "Timeout" in text:
        return (
            f"something accepts the connection, but does not speak SSH within {HANDSHAKE_SECONDS:.0f} s or hangs up"
            + (f", and says {said!r}" if said else "")
            + "; the host may be overloaded or hang, its sshd may refuse more connections (MaxStartups, "
            "PerSourcePenalties), or the port is another service's"
        )
    why = f"no secure connection could be agreed on: {readable(text) or type(error).__name__}"
    options = transport.get_security_options()
    for what, keyword, known in (
        ("ciphers", "Ciphers", options.ciphers),
        ("macs", "MACs", options.digests),
        ("kex", "KexAlgorithms", options.kex),
        ("host key", "HostKeyAlgorithms", options.key_types),
    ):
        if f"no acceptable {what}" in text:
            why += f"; {keyword} in the host's sshd_config must allow one of {', '.join(known)}"
    return why


def _known_first(offered: Any, known: Any) -> list[str]:
    """The offered kinds of host keys, the known ones first, so that the host presents one of those."""
    wanted = [kind for kind in offered if kind in known]
    if "ssh-rsa" in known:
        wanted += [kind for kind in offered if kind.startswith("rsa-sha2-")]
    return _first(offered, wanted)


def _first(offered: Any, wanted: Any) -> list[str]:
    chosen = [word for word in wanted if word in offered]
    return [*chosen, *(word for word in offered if word not in chosen)]


def shown(transport: Transport) -> host_keys.HostKey:
    """The host key that the host has presented and proved."""
    key = transport.get_remote_server_key()
    return host_keys.HostKey(key.get_name(), key.asbytes())
