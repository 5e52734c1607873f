"""One transport per host: shared, replaced when it breaks, given up when the host is silent, gone when not needed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from flowlite.connect.ssh import half_open, link
from flowlite.connect.ssh import transport as ssh_transport
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from flowlite.connect.ssh.quoting import login_line
from flowlite.errors import NodeUnreachable
from tests.connect.sshd import Sshd, free_port, scratch
from tests.helpers import eventually

Servers = Callable[..., Sshd]
Connect = Callable[..., SshConnection]


def test_connections_share_a_transport(servers: Servers, config: Callable[..., Path]) -> None:
    server = servers()
    target = resolve_target("box", config(server.config_for()))
    first, second = SshConnection(target), SshConnection(target)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: (first, second)[n % 2].run(["true"]), range(24)))
    assert len(server.sessions()) == 1
    first.close()
    assert second.run(["true"]).code == 0
    second.close()
    # Kept for a while, for whoever comes next.
    with SshConnection(target) as third:
        third.run(["true"])
    assert server.log.read_text().count("Accepted publickey") == 1
    link.close_idle()
    eventually(lambda: server.sessions() == [])


def test_a_closed_connection_stays_closed(connection: SshConnection) -> None:
    connection.run(["true"])
    connection.close()
    with pytest.raises(NodeUnreachable, match="was closed"):
        connection.run(["true"])


def test_a_transport_that_nobody_needs_goes(
    servers: Servers, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_transport, "PULSE_SECONDS", 0.05)
    # A busy host may answer late.
    monkeypatch.setattr(ssh_transport, "UNANSWERED", 1000)
    monkeypatch.setattr(ssh_transport, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(ssh_transport.Transport, "_active_check_timeout", 0.05)
    server = servers()
    connection = connect(server)
    connection.run(["true"])
    # Held, it stays, however quiet it is: the keepalive goes on.
    answered = connection._link.transport().packetizer
    eventually(
        lambda: getattr(answered, "unanswered", 1) == 0 and time.monotonic() - answered.asked < 1
    )  # type: ignore[attr-defined]
    assert len(server.sessions()) == 1
    connection.close()
    eventually(lambda: server.sessions() == [])


def test_it_connects_again_after_a_break(servers: Servers, connect: Connect) -> None:
    server = servers()
    connection = connect(server)
    for _ in range(3):
        assert connection.run(["echo", "here"]).stdout == b"here\n"
        transport = connection._link.transport()
        server.cut()
        # Until then a command may be taken for one that had begun.
        eventually(lambda: not transport.is_active())  # noqa: B023
    server.stop()
    with pytest.raises(NodeUnreachable, match=r"cannot connect to 127\.0\.0\.1"):
        connection.run(["true"])
    server.start()
    assert connection.run(["echo", "again"]).stdout == b"again\n"


def test_what_has_come_is_counted_over_all_transports(servers: Servers, connect: Connect) -> None:
    server = servers()
    connection = connect(server)
    assert connection.received() == 0
    for times in (1, 2):
        connection.run(["head", "-c", "100000", "/dev/zero"])
        assert 100_000 * times < connection.received() < 110_000 * times
        server.cut()
        eventually(lambda: not connection._link._transport.is_active())  # type: ignore[union-attr]


def test_a_break_in_the_middle_of_a_command(
    servers: Servers, connect: Connect, tmp_path: Path
) -> None:
    server = servers()
    connection = connect(server)
    note = tmp_path / "begun"

    def cut() -> None:
        eventually(note.exists)
        server.cut()

    cutting = threading.Thread(target=cut)
    cutting.start()
    with pytest.raises(NodeUnreachable, match=r"host box \(.*on the next use"):
        connection.run(["sh", "-c", f"echo some; touch {note}; exec sleep 5"])
    cutting.join()


def test_a_break_between_the_status_of_a_command_and_the_end_of_its_output(
    servers: Servers, connect: Connect, tmp_path: Path
) -> None:
    """sshd sends the status as soon as the command has ended, though output waits for room in the window."""
    server = servers()
    connection = connect(server)
    whole = ssh_transport.WINDOW + 30_000
    path = tmp_path / "long"
    path.write_bytes(bytes(whole))
    pieces = connection.read(str(path), 0)
    came = [len(next(pieces))]
    transport: Any = connection._link.transport()
    eventually(lambda: [each.exit_status for each in transport._channels.values()] == [0])
    server.cut()
    eventually(lambda: not transport.is_active())
    with pytest.raises(NodeUnreachable, match="on the next use"):
        came.extend(len(piece) for piece in pieces)
    assert sum(came) < whole


def test_a_break_while_a_command_is_sent(
    connection: SshConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.run(["true"])
    transport: Any = connection._link.transport()
    write, written = transport.packetizer.write_all, []

    caller = threading.get_ident()

    def break_at_the_second(data: bytes) -> None:
        # The first opens the channel. What the transport says of itself meanwhile does not count.
        if threading.get_ident() == caller:
            written.append(data)
        if len(written) == 2 and written[-1] is data:
            transport.sock.shutdown(socket.SHUT_RDWR)
            raise EOFError
        write(data)

    monkeypatch.setattr(transport.packetizer, "write_all", break_at_the_second)
    with pytest.raises(NodeUnreachable, match="connected to again on the next use"):
        connection.run(["true"])
    assert connection.run(["echo", "again"]).stdout == b"again\n"


def test_a_silent_host_is_given_up(
    servers: Servers, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ssh_transport.Transport, "_active_check_timeout", 0.05)
    server = servers()
    connection = connect(server)
    connection.run(["true"])
    (session,) = server.sessions()
    note = tmp_path / "begun"

    def stop() -> None:
        eventually(note.exists)
        os.kill(session, signal.SIGSTOP)
        # Not before: a busy host takes its time to begin.
        impatient.setattr(ssh_transport, "PULSE_SECONDS", 0.3)

    stopping = threading.Thread(target=stop)
    with monkeypatch.context() as impatient:
        stopping.start()
        try:
            with pytest.raises(NodeUnreachable, match=r"has not answered for \d+ s"):
                connection.run(["sh", "-c", f"touch {note}; exec sleep 600"])
        finally:
            stopping.join()
            os.kill(session, signal.SIGCONT)
    assert connection.run(["true"]).code == 0


def test_a_quiet_command_is_not_taken_for_a_silent_host(
    servers: Servers, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_transport, "PULSE_SECONDS", 2.0)
    monkeypatch.setattr(ssh_transport.Transport, "_active_check_timeout", 0.02)
    connection = connect(servers())
    # Longer than a silent host is waited for.
    assert ssh_transport.PULSE_SECONDS * (ssh_transport.UNANSWERED + 1) == 8
    assert connection.run(["sleep", "10"]).code == 0


def test_channels_wait_for_one_another(servers: Servers, connect: Connect) -> None:
    # Fewer than we expect to be allowed, and refused rather than queued by sshd.
    connection = connect(servers(MaxSessions="2"))

    def one(number: int) -> bytes:
        return connection.run(["sh", "-c", f"sleep 0.2; echo {number}"]).stdout

    with ThreadPoolExecutor(9) as pool:
        assert list(pool.map(one, range(9))) == [b"%d\n" % n for n in range(9)]


def test_a_channel_waits_as_long_as_its_caller(
    servers: Servers, connect: Connect, tmp_path: Path
) -> None:
    connection = connect(servers(MaxSessions="1"))
    gate = tmp_path / "gate"
    waits = f"until [ -e {gate} ]; do sleep 0.05; done"
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(connection.run, ["sh", "-c", waits])
        eventually(lambda: connection._link._open == 1)
        with pytest.raises(TimeoutError):
            connection.run(["true"], timeout=0.5)
        second = pool.submit(connection.run, ["true"])
        gate.touch()
        assert first.result(90).code == second.result(90).code == 0


def test_a_host_that_opens_no_session(
    servers: Servers, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "REFUSED_SECONDS", 0.5)
    connection = connect(servers(MaxSessions="0"))
    with pytest.raises(NodeUnreachable, match="MaxSessions"):
        connection.run(["true"])


def test_all_channels_hang_and_time_out(connection: SshConnection) -> None:
    def one(_: int) -> bool:
        try:
            connection.run(["sleep", "60"], timeout=0.5)
        except TimeoutError:
            return True
        return False

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(one, range(20)))
    assert connection.run(["true"], timeout=90).code == 0


# Who does not answer


def test_nobody_listens(config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    path = config(f"Host lab\n HostName 127.0.0.1\n Port {port}\n User ann\n")
    pauses: list[float] = []
    monkeypatch.setattr(link.time, "sleep", pauses.append)
    with SshConnection(resolve_target("lab", path)) as connection:
        for _ in range(9):
            with pytest.raises(NodeUnreachable) as caught:
                connection.run(["true"])
            # As if it had failed for so much longer.
            connection._link._failing_since -= 5.0
    for part in ("host lab", f"ann@127.0.0.1:{port}", "refused", "firewall"):
        assert part in str(caught.value)
    # Later attempts wait longer, up to a limit.
    assert len(pauses) == 8
    assert all(pause <= link.LONGEST_PAUSE for pause in pauses)
    assert pauses[-1] > 2 * pauses[0]


def test_a_name_that_nobody_knows(config: Callable[..., Path]) -> None:
    path = config("Host lab\n HostName no-such-host.invalid\n")
    with (
        SshConnection(resolve_target("lab", path)) as connection,
        pytest.raises(NodeUnreachable, match=r"'no-such-host\.invalid' is not known"),
    ):
        connection.open()


@pytest.mark.parametrize("name", ["lab..example", f"{'l' * 64}.example"])
def test_a_name_that_cannot_be_asked_for(config: Callable[..., Path], name: str) -> None:
    with (
        SshConnection(resolve_target(name, config(""))) as connection,
        pytest.raises(NodeUnreachable, match=rf"'{name}' is not known"),
    ):
        connection.open()


def _packet(payload: bytes) -> bytes:
    padding = 16 - (len(payload) + 5) % 8
    return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)


def _strings(*each: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(one)) + one for one in each)


@pytest.mark.parametrize(
    ("packet", "said"),
    [
        (_packet(b""), "an invalid message"),
        (
            _packet(b"\x14" + bytes(16) + _strings(*[b"\xff\xfe"] * 10) + bytes(5)),
            "an invalid message",
        ),
        (
            _packet(b"\x01" + struct.pack(">I", 2) + _strings(b"\xff\x1b]0;title\x07")),
            "an invalid message",
        ),
        # Of which the client would hold as much as comes.
        (struct.pack(">I", (1 << 30) + 4) + bytes(1 << 20), "a packet of 1,073,741,"),
    ],
    ids=["empty", "algorithms", "farewell", "huge"],
)
def test_a_host_that_sends_what_no_host_sends(
    config: Callable[..., Path], packet: bytes, said: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        path = config(f"Host lab\n HostName 127.0.0.1\n Port {server.getsockname()[1]}\n")

        def answer() -> None:
            connected = server.accept()[0]
            with connected:
                connected.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" + packet)
                with contextlib.suppress(OSError):
                    while connected.recv(4096):
                        pass

        threading.Thread(target=answer, daemon=True).start()
        with (
            SshConnection(resolve_target("lab", path)) as connection,
            pytest.raises(NodeUnreachable, match=f"host lab .*{said}"),
        ):
            connection.open()


def test_addresses_are_those_that_the_configuration_names(
    servers: Servers, config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a name that has an IPv6 address on which nothing comes through."""
    server = servers()
    found = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, port, family=0, *more: [
            *found("::1", 9, socket.AF_INET6, *more)[: family != socket.AF_INET],
            *found("127.0.0.1", port, socket.AF_INET, *more)[: family != socket.AF_INET6],
        ],
    )
    seen: list[tuple[int, str]] = []

    class Noted(socket.socket):
        def connect(self, address: Any) -> None:
            seen.append((self.family, self.getsockname()[0]))
            super().connect(address)

    monkeypatch.setattr(socket, "socket", Noted)
    for more, expected in (
        ("", [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]),
        ("AddressFamily inet\n BindAddress 127.0.0.7", [(socket.AF_INET, "127.0.0.7")]),
    ):
        path = config(f"Host lab\n HostName lab.example\n Port {server.port}\n {more}\n")
        ssh_transport.open_socket(resolve_target("lab", path)).close()
        assert seen == expected
        del seen[:]

    class WithoutIpv6(socket.socket):
        def __init__(self, family: int = -1, *more: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            super().__init__(family, *more)

    monkeypatch.setattr(socket, "socket", WithoutIpv6)
    path = config(f"Host lab\n HostName lab.example\n Port {server.port}\n")
    ssh_transport.open_socket(resolve_target("lab", path)).close()


def test_something_else_listens(
    config: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_transport, "HANDSHAKE_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        path = config(f"Host lab\n HostName 127.0.0.1\n Port {port}\n")
        with (
            SshConnection(resolve_target("lab", path)) as connection,
            pytest.raises(NodeUnreachable, match="does not speak SSH"),
        ):
            connection.open()


# The way there


def test_through_other_hosts(servers: Servers, config: Callable[..., Path]) -> None:
    one, two, inner = servers(), servers(), servers()
    path = config(
        one.config_for("one"),
        two.config_for("two", extra="  ProxyJump one\n"),
        inner.config_for("inner", extra="  ProxyJump two\n"),
    )
    with SshConnection(resolve_target("inner", path)) as connection:
        assert connection.run(["echo", "inside"]).stdout == b"inside\n"
        for server in (one, two):
            transport = connection._link.transport()
            server.cut()
            eventually(lambda: not transport.is_active())  # noqa: B023
            assert connection.run(["echo", "again"]).stdout == b"again\n"
        inner.stop()
        with pytest.raises(NodeUnreachable, match=r"two cannot connect to 127\.0\.0\.1"):
            connection.run(["true"])
    link.close_idle()
    eventually(lambda: one.sessions() == two.sessions() == [])


def test_through_a_command(servers: Servers, config: Callable[..., Path]) -> None:
    server = servers()
    script = server.directory / "relay.py"
    script.write_text(
        "import os, socket, sys, threading\n"
        "far = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
        "def up():\n"
        "    while block := os.read(0, 65536):\n"
        "        far.sendall(block)\n"
        "    far.shutdown(socket.SHUT_WR)\n"
        "threading.Thread(target=up, daemon=True).start()\n"
        "while block := far.recv(65536):\n"
        "    os.write(1, block)\n"
    )
    command = f"  ProxyCommand {sys.executable} {script} %h %p\n"
    target = resolve_target("box", config(server.config_for(extra=command)))
    with SshConnection(target) as connection:
        assert connection.run(["echo", "through"]).stdout == b"through\n"
    link.close_idle()
    eventually(lambda: server.sessions() == [])


# Login shells


SHELLS = [
    [path, *options]
    for name, *options in (
        ["sh"],
        ["bash"],
        ["dash"],
        ["zsh", "-f"],
        ["ksh"],
        ["mksh"],
        ["fish"],
        ["tcsh", "-f"],
        ["csh", "-f"],
        ["busybox", "sh"],
    )
    if (path := shutil.which(name))
]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: Path(words[0]).name)
def test_any_login_shell(shell: list[str]) -> None:
    script = (
        b"for word in 'a b' \"it's\" '$HOME' '`id`' '!x' 'a\\b' '\xff\xc3' 'two\nlines' '%s'; do "
        b"printf '<%s>' \"$word\"; done"
    )
    expected = b"<a b><it's><$HOME><`id`><!x><a\\b><\xff\xc3><two\nlines><%s>"
    done = subprocess.run(
        [*shell, "-c", login_line(script)], capture_output=True, check=False, timeout=90
    )
    assert (done.stdout, done.returncode) == (expected, 0), done.stderr


def test_what_the_login_shell_says_is_no_output(servers: Servers, connect: Connect) -> None:
    # As a ~/.bashrc that prints does, on both outputs; more than one block of it.
    noise = "head -c 300000 /dev/zero | tr '\\0' n; echo noise >&2; eval \"$SSH_ORIGINAL_COMMAND\""
    home = scratch()
    script = home / "noisy"
    script.write_text(f"#!/bin/sh\n{noise}\n")
    script.chmod(0o700)
    connection = connect(servers(ForceCommand=str(script)))
    done = connection.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (done.code, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    connection.put(b"content", str(home / "file"))
    assert b"".join(connection.read(str(home / "file"))) == b"content"
    shutil.rmtree(home)


def test_a_login_shell_that_runs_nothing(servers: Servers, connect: Connect) -> None:
    said = "printf 'This account\\033[2J is\\nnot available\\n'; exit 1"
    connection = connect(servers(ForceCommand=said))
    # In words that do nothing to the terminal of whoever reads them.
    with pytest.raises(NodeUnreachable, match=r"it said: This account\?\[2J is not available"):
        connection.run(["true"])


def test_the_agent_is_not_there(connection: SshConnection) -> None:
    assert connection.run(["printenv", "SSH_AUTH_SOCK"]).code == 1


# What is left over


def test_nothing_is_left(servers: Servers, connect: Connect) -> None:
    server = servers()
    connect(server).run(["true"])
    link.close_idle()
    no_half_open_ones()
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        connection = connect(server)
        connection.run(["cat"], input=b"x" * 1_000_000)
        connection.put(b"x" * 1_000_000, str(server.directory / "file"))
        with pytest.raises(TimeoutError):
            connection.run(["sleep", "9"], timeout=0.3)
        transport = connection._link.transport()
        server.cut()
        eventually(lambda: not transport.is_active())  # noqa: B023
        assert connection.run(["true"]).code == 0
        connection.close()
    link.close_idle()
    no_half_open_ones()
    eventually(lambda: set(threading.enumerate()) <= threads, what="all threads ended")
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors)


def no_half_open_ones() -> None:
    """Waits until the hosts have acknowledged the end of every connection: until then a thread keeps its socket."""
    eventually(lambda: half_open._telling is None)


def test_a_forked_process_has_links_of_its_own(connection: SshConnection) -> None:
    import gc

    with connection._link.session():
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0 if not link._links else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert connection.run(["true"]).code == 0


def test_a_handshake_starts_no_timer(
    connect: Connect, server: Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer is a thread, and a gang has hundreds of handshakes."""

    def refuse(*_: object) -> None:
        raise AssertionError("a timer was started")

    monkeypatch.setattr(threading, "Timer", refuse)
    link.close_idle()
    connect(server).open()


@pytest.mark.parametrize(
    ("option", "only", "needed"),
    [
        ("Ciphers", "chacha20-poly1305@openssh.com", "aes256-gcm@openssh.com"),
        ("KexAlgorithms", "sntrup761x25519-sha512@openssh.com", "curve25519-sha256@libssh.org"),
    ],
)
def test_what_sshd_must_allow_is_named(
    servers: Servers, connect: Connect, option: str, only: str, needed: str
) -> None:
    with pytest.raises(
        NodeUnreachable, match=rf"{option} in the host's sshd_config must allow one of .*{needed}"
    ):
        connect(servers(**{option: only})).run(["true"])


def test_what_sshd_says_in_the_place_of_its_greeting(servers: Servers, connect: Connect) -> None:
    server = servers(MaxStartups="1")
    with contextlib.ExitStack() as held:

        def holds_the_only_place() -> bool:
            place = socket.create_connection(("127.0.0.1", server.port))
            return held.enter_context(place).recv(4) == b"SSH-"

        eventually(holds_the_only_place)
        with pytest.raises(NodeUnreachable, match="and says 'Exceeded MaxStartups'; the host may"):
            connect(server).run(["true"])
