"""Connections to test hosts, with what only a machine of its own can suffer: power cuts, partitions, full disks."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flowlite.connect.ssh import files as ssh_files
from flowlite.connect.ssh import half_open, link, transport
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from flowlite.connect.values import File
from flowlite.errors import NodeUnreachable
from tests.helpers import eventually

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster, Host

BIG = os.urandom(1 << 16) * 80


@pytest.fixture
def on_laptop(hosts: Cluster) -> Iterator[Cluster]:
    with hosts.enter_laptop():
        yield hosts
        link.close_idle()


@pytest.fixture
def reach(on_laptop: Cluster) -> Iterator[Callable[[Host], SshConnection]]:
    made: list[SshConnection] = []

    def connect(host: Host) -> SshConnection:
        made.append(SshConnection(resolve_target(host.name, on_laptop.ssh_config)))
        return made[-1]

    yield connect
    for connection in made:
        connection.close()


@pytest.fixture
def watchful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections look often whether something is to be done."""
    monkeypatch.setattr(transport.Transport, "_active_check_timeout", 0.1)


@contextmanager
def impatience() -> Iterator[Callable[[], None]]:
    """What to call once a host is silent: what takes a minute in real life takes some seconds from then on.

    A host that answers is waited for with the usual patience: on a busy machine it takes its time.
    """
    with pytest.MonkeyPatch.context() as patch:

        def begin() -> None:
            patch.setattr(transport, "PULSE_SECONDS", 0.5)
            patch.setattr(transport, "CONNECT_SECONDS", 2.0)
            patch.setattr(transport, "HANDSHAKE_SECONDS", 3.0)

        yield begin


def open_for_a_short_silence(connection: SshConnection) -> None:
    """Connects with the kernel's own limit as it is for the impatient: a connection has it from its beginning."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "PULSE_SECONDS", 0.5)
        connection.open()
    connection.run(["true"])


Reach = Callable[["Host"], SshConnection]


def sessions_of(host: Host) -> set[int]:
    """sshd's processes on a host that serve somebody."""
    found = set()
    for pid in host.pids():
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sshd: root"):
                found.add(pid)
    return found


@pytest.mark.slow
def test_a_host_that_was_cut_off_keeps_no_session(
    on_laptop: Cluster, reach: Reach, watchful: None
) -> None:
    """Its client went while it could not say so."""
    host = on_laptop[0]
    connection = reach(host)
    open_for_a_short_silence(connection)
    assert sessions_of(host)
    host.partition()
    with impatience() as begin:
        begin()
        with pytest.raises(NodeUnreachable):
            connection.run(["true"], timeout=90)
    connection.close()
    link.close_idle()
    # Longer than the kernel would go on by itself.
    time.sleep(6)
    host.heal()
    # The kernel alone doubles its pauses, and may need two minutes.
    eventually(lambda: not sessions_of(host))


@contextmanager
def unheard(connection: SshConnection) -> Iterator[None]:
    """Nothing that is said over the present transport of a connection gets there meanwhile, its end neither."""
    port = transport_of(connection).sock.getsockname()[1]
    with lost(f"tcp sport {port} tcp flags & (psh | fin) != 0 drop"):
        yield


def transport_of(connection: SshConnection) -> transport.Transport:
    """The transport that a connection has now."""
    (held,) = [each for target, each in link._links.items() if target == connection.target]
    assert held._transport is not None
    return held._transport


@contextmanager
def lost(rule: str) -> Iterator[None]:
    """Packets that leave this machine meet a rule of nftables meanwhile."""
    subprocess.run(
        ["nft", "-f", "-"],
        input=f"add table inet lost\nadd chain inet lost out "
        f"{{ type filter hook output priority 0; }}\nadd rule inet lost out {rule}\n",
        text=True,
        check=True,
    )
    try:
        yield
    finally:
        subprocess.run(["nft", "delete", "table", "inet", "lost"], check=True)


def test_a_session_that_could_not_hear_its_end_goes_when_the_host_is_reached_again(
    on_laptop: Cluster, reach: Reach, watchful: None
) -> None:
    host = on_laptop[2]
    connection = reach(host)
    connection.run(["true"])
    before = sessions_of(host)
    with unheard(connection):
        with impatience() as begin:
            begin()
            old = transport_of(connection)
            eventually(lambda: not old.is_active())
        # It connects again.
        assert connection.run(["true"], timeout=90).code == 0
        eventually(lambda: not before & sessions_of(host))
        assert connection.run(["true"], timeout=90).code == 0


def test_a_session_that_could_not_hear_its_end_goes_although_nobody_goes_there_again(
    on_laptop: Cluster, reach: Reach
) -> None:
    host = on_laptop[2]
    connection = reach(host)
    connection.run(["true"])
    assert sessions_of(host)
    with unheard(connection):
        connection.close()
        link.close_idle()
        eventually(lambda: not sessions_of(host))
    eventually(lambda: not half_open._all and half_open._telling is None)


_EXITS = """
import os, sys
from pathlib import Path
from flowlite.connect.ssh import half_open, link, transport
from flowlite.connect.ssh.connection import SshConnection, resolve_target

transport.PULSE_SECONDS = float(sys.argv[4])
connection = SshConnection(resolve_target(sys.argv[1], Path(sys.argv[2])))
connection.run(["true"])
(held,) = link._links.values()
print(held._transport.sock.getsockname()[1], flush=True)
sys.stdin.readline()
if sys.argv[3] == "after":
    held._transport.join()
if sys.argv[3] == "supervisor":
    half_open.leave_all()
    os._exit(0)
"""


def repeating() -> list[int]:
    """Processes of this laptop that repeat the ends of connections for others, or will when those have ended."""
    return [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if half_open.__file__.encode() in _words(pid) and _network(pid) == _network(os.getpid())
    ]


def _network(pid: int) -> str:
    # The thread of a test enters the laptop, not its process.
    here = "thread-self" if pid == os.getpid() else str(pid)
    with suppress(OSError):
        return os.readlink(f"/proc/{here}/ns/net")
    return ""


def _words(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


@pytest.mark.parametrize("how", ["at once", "after", "supervisor"])
def test_a_process_that_exits_in_an_outage_leaves_no_session(on_laptop: Cluster, how: str) -> None:
    """It exits with the connection open, after it noticed the outage, or as a supervisor does."""
    host = on_laptop[2]
    pulse = "0.3" if how == "after" else "30"
    with subprocess.Popen(
        [sys.executable, "-c", _EXITS, host.name, str(on_laptop.ssh_config), how, pulse],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        before = sessions_of(host)
        assert before
        with lost(f"tcp sport {port} drop"):
            process.stdin.write("\n")
            process.stdin.close()
            assert process.wait(90) == 0
            assert before <= sessions_of(host)
        # The kernel's own end of the connection never arrives.
        with lost(f"tcp sport {port} tcp flags & (psh | fin) != 0 drop"):
            eventually(lambda: not before & sessions_of(host))
    eventually(lambda: not repeating())


_SAYS_WHAT_ITS_DEPUTY_KNOWS = """
from flowlite.connect.ssh import half_open

tell = half_open._tell_deputy

def tell_and_say(changed):
    tell(changed)
    print("told" if half_open._deputy is not None else "ended", flush=True)

half_open._tell_deputy = tell_and_say
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_in_an_outage_leaves_no_session(
    on_laptop: Cluster, number: signal.Signals
) -> None:
    """It had no courier on the host, and could do nothing itself."""
    host = on_laptop[1]
    script = f"{_SAYS_WHAT_ITS_DEPUTY_KNOWS}{_EXITS}"
    with subprocess.Popen(
        [sys.executable, "-c", script, host.name, str(on_laptop.ssh_config), "at once", "2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        before = sessions_of(host)
        assert before
        with lost(f"tcp sport {port} drop"):
            # One that has been started, and not been told yet, ends with this process.
            assert process.stdout.readline() == "told\n"
            assert repeating()
            process.send_signal(number)
            assert process.wait(90) == -number
            assert before <= sessions_of(host)
        with lost(f"tcp sport {port} tcp flags & (psh | fin) != 0 drop"):
            eventually(lambda: not before & sessions_of(host))
    eventually(lambda: not repeating())


def test_an_outage_that_is_over_leaves_no_deputy(on_laptop: Cluster, reach: Reach) -> None:
    host = on_laptop[1]
    connection = reach(host)
    connection.run(["true"])
    held = transport_of(connection)
    with lost(f"ip daddr {held.sock.getpeername()[0]} drop"):
        eventually(repeating)
    eventually(lambda: not repeating() and half_open._deputy is None)
    assert held.is_active()
    assert sessions_of(host)


def test_a_process_that_exits_while_all_hosts_answer_starts_no_other(on_laptop: Cluster) -> None:
    host = on_laptop[2]
    script = f"from flowlite.connect.ssh import half_open; half_open._start = print\n{_EXITS}"
    done = subprocess.run(
        [sys.executable, "-c", script, host.name, str(on_laptop.ssh_config), "at once", "30"],
        input="\n",
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1
    eventually(lambda: not sessions_of(host))


def test_sessions_behind_a_jump_host_go_with_its_own(on_laptop: Cluster, reach: Reach) -> None:
    gate, inner = on_laptop[0], on_laptop[1]
    to_gate = reach(gate)
    to_gate.run(["true"])
    behind = SshConnection(
        resolve_target({"host": inner.name, "jump": gate.name}, on_laptop.ssh_config)
    )
    assert behind.run(["hostname"]).stdout.decode().strip() == inner.name
    with unheard(to_gate):
        to_gate.close()
        behind.close()
        link.close_idle()
        eventually(lambda: not sessions_of(gate) and not sessions_of(inner))


def test_a_connection_that_was_closed_in_peace_is_not_looked_after(
    on_laptop: Cluster, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[half_open.TcpAddresses] = []
    monkeypatch.setattr(half_open, "_request", asked.append)
    connection = reach(on_laptop[3])
    connection.run(["true"])
    connection.close()
    link.close_idle()
    eventually(lambda: not half_open._all and half_open._telling is None)
    assert asked == []


def test_a_full_disk(reach: Reach, on_laptop: Cluster) -> None:
    host = on_laptop[0]
    connection = reach(host)
    connection.put(b"before", "/root/file")
    host.fill_disk(leave=300_000)
    with pytest.raises(OSError, match=f"{host.name}.*No space left") as caught:
        connection.put(BIG, "/root/file")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="No space left"):
        connection.put_many([File("/root/file", BIG), File("/root/other", b"other")])
    assert b"".join(connection.read("/root/file")) == b"before"
    assert connection.run(["sh", "-c", "ls -A /root | grep part"]).stdout == b""
    host.free_disk()
    connection.put(BIG, "/root/file")
    assert b"".join(connection.read("/root/file")) == BIG


@pytest.mark.usefixtures("watchful")
@pytest.mark.parametrize("what", ["partition", "pause", "power_cut"])
def test_a_host_that_goes_silent(reach: Reach, on_laptop: Cluster, what: str) -> None:
    host = on_laptop[1]
    connection = reach(host)
    connection.run(["true"])

    def strike() -> None:
        eventually(lambda: (host.root / "tmp" / "begun").exists())
        getattr(host, what)()
        begin()

    striking = threading.Thread(target=strike)
    with impatience() as begin:
        striking.start()
        with pytest.raises(NodeUnreachable, match=f"host {host.name}"):
            connection.run(["sh", "-c", "touch /tmp/begun; exec sleep 600"])
        striking.join()
        with pytest.raises(NodeUnreachable, match=f"host {host.name}"):
            connection.run(["true"])
    {"partition": host.heal, "pause": host.resume, "power_cut": host.start}[what]()
    eventually(lambda: _answers(connection))


def _answers(connection: SshConnection) -> bool:
    try:
        return connection.run(["true"]).code == 0
    except NodeUnreachable:
        return False


@pytest.mark.usefixtures("watchful")
def test_an_upload_to_a_host_that_freezes(reach: Reach, on_laptop: Cluster, tmp_path: Path) -> None:
    # All buffers on the way fill up, and no keepalive gets through.
    host = on_laptop[2]
    source = tmp_path / "source"
    source.write_bytes(bytes(64_000_000))
    connection = reach(host)
    open_for_a_short_silence(connection)
    host.pause()
    with impatience() as begin:
        begin()
        with pytest.raises(NodeUnreachable, match=f"host {host.name}"):
            connection.put(source, "/root/file")
    host.resume()
    eventually(lambda: _answers(connection))
    assert connection.run(["test", "-e", "/root/file"]).code == 1


def test_a_host_that_lets_in_and_runs_nothing(
    reach: Reach, on_laptop: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_files, "_STALL_SECONDS", 1.0)
    host = on_laptop[0]
    host.hang_logins()
    connection = reach(host)
    connection.open()
    with pytest.raises(TimeoutError, match=f"host {host.name}"):
        connection.run(["true"], timeout=1)
    with pytest.raises(NodeUnreachable, match=f"host {host.name}.*stood still"):
        connection.put(b"x", "/root/file")
    with pytest.raises(NodeUnreachable, match=f"host {host.name}.*stood still"):
        list(connection.read("/etc/passwd"))
    host.restart_sshd(sessions=True)
    eventually(lambda: _answers(connection))


def test_a_slow_and_lossy_way(reach: Reach, on_laptop: Cluster, tmp_path: Path) -> None:
    host = on_laptop[3]
    host.delay(50, loss_percent=2)
    connection = reach(host)
    content = BIG[:1_000_000]
    files = [File(f"/root/new/{n}", content[n::3], 0o600) for n in range(3)]
    connection.put_many(files)
    for n in range(3):
        got = b"".join(connection.read(f"/root/new/{n}", 1000))
        assert hashlib.sha256(got).digest() == hashlib.sha256(content[n::3][1000:]).digest()


def test_as_an_ordinary_user(on_laptop: Cluster) -> None:
    written = {"host": on_laptop[0].name, "user": "flow"}
    with SshConnection(resolve_target(written, on_laptop.ssh_config)) as connection:
        connection.put(b"mine", "/home/flow/.flowlite-node/file")
        assert connection.run(["id", "-un"]).stdout == b"flow\n"
        assert (
            connection.run(["stat", "-c", "%a %U", "/home/flow/.flowlite-node"]).stdout
            == b"700 flow\n"
        )
        with pytest.raises(PermissionError):
            connection.put(b"x", "/root/file")
        with pytest.raises(PermissionError):
            connection.put(b"x", "/etc/passwd")
        with pytest.raises(PermissionError):
            list(connection.read("/etc/shadow"))
