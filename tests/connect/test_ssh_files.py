"""Files by SSH when something breaks: nothing half, nothing twice, nothing lost; and what others there can see."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import resource
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowlite.connect.ssh import files as ssh_files
from flowlite.connect.ssh import link
from flowlite.connect.ssh.connection import SshConnection, resolve_target
from flowlite.connect.values import File
from flowlite.errors import NodeUnreachable
from tests.connect.sshd import Sshd
from tests.helpers import eventually, running

Servers = Callable[..., Sshd]
Connect = Callable[..., SshConnection]


class Relay:
    """Stands between us and a server, and cuts a connection after some thousands of bytes towards us."""

    def __init__(self, port: int, seed: int) -> None:
        self.cuts = 0
        self.limit = 0
        self._random = random.Random(seed)
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            for sock in (near, far):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            limit = self._random.randrange(1, self.limit) if self.limit else 0
            threading.Thread(target=self._carry, args=(near, far, 0), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near, limit), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, limit: int) -> None:
        carried = 0
        try:
            while block := source.recv(65536):
                carried += len(block)
                if limit and carried > limit:
                    # Some of it arrives.
                    target.sendall(block[: self._random.randrange(len(block))])
                    self.cuts += 1
                    break
                target.sendall(block)
        except OSError:
            pass
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def relayed(server: Sshd, tmp_path: Path) -> Iterator[tuple[Relay, SshConnection]]:
    """A connection through a relay."""
    relay = Relay(server.port, seed=3)
    text = server.config_for().replace(f"Port {server.port}", f"Port {relay.port}")
    path = tmp_path / "config"
    path.write_text(f"{text}  HostKeyAlias {server.known_line.split()[0]}\n")
    connection = SshConnection(resolve_target("box", path))
    yield relay, connection
    connection.close()
    link.close_idle()
    relay.close()


@pytest.mark.parametrize(
    "cuts",
    [30, pytest.param(1000, marks=pytest.mark.hours)],
)
@pytest.mark.timeout(600)
def test_a_reader_that_is_cut_off_loses_nothing(
    relayed: tuple[Relay, SshConnection],
    tmp_path: Path,
    cuts: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relay, connection = relayed
    # Being cut off while connecting counts as a failure, after which one waits.
    monkeypatch.setattr(link, "LONGEST_PAUSE", 0.0)
    path = tmp_path / "log"
    path.write_bytes(b"")
    written, done = hashlib.sha256(), threading.Event()

    def write() -> None:
        with open(path, "ab", buffering=0) as file:
            for number in range(1 << 30):
                block = b"%d\n" % number * 2000
                file.write(block)
                written.update(block)
                if done.wait(0.005):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    read, size = hashlib.sha256(), 0

    def take() -> bool:
        nonlocal size
        try:
            for block in connection.read(str(path), size):
                read.update(block)
                size += len(block)
        except NodeUnreachable:
            return False
        return True

    relay.limit = 60_000
    while relay.cuts < cuts:
        take()
    relay.limit = 0
    done.set()
    writer.join()
    eventually(take)
    while size < path.stat().st_size:
        take()
    assert size == path.stat().st_size
    assert read.digest() == written.digest()


def cut_after(monkeypatch: pytest.MonkeyPatch, blocks: int, cut: Callable[[], None]) -> None:
    """Breaks the connection when so many blocks of files have gone out."""
    whole = File.blocks
    count = 0

    def some(file: File, size: int) -> Iterator[bytes]:
        nonlocal count
        for block in whole(file, size):
            count += 1
            if count == blocks:
                cut()
            yield block

    monkeypatch.setattr(File, "blocks", some)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("blocks", [1, 2, 9])
def test_a_put_that_is_cut_off_leaves_what_was_there(
    servers: Servers,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    many: bool,
    blocks: int,
) -> None:
    server = servers()
    connection = connect(server)
    source, target = tmp_path / "source", tmp_path / "there" / "target"
    source.write_bytes(os.urandom(1 << 20) * 12)
    connection.put(b"before", str(target))
    cut_after(monkeypatch, blocks, server.cut)
    files = [File(str(target), source)]
    if many:
        files.append(File(str(target.with_name("second")), source))
    with pytest.raises(NodeUnreachable):
        connection.put_many(files)
    monkeypatch.undo()
    # What was left of it on the host cleans up after itself.
    eventually(lambda: [p.name for p in target.parent.iterdir()] == ["target"])
    assert target.read_bytes() == b"before"
    connection.put_many(files)
    assert target.read_bytes() == source.read_bytes()


def test_a_source_that_shrinks_on_the_way(
    connection: SshConnection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(3_000_000))
    cut_after(monkeypatch, 2, lambda: os.truncate(source, 1_000_000))
    with pytest.raises(OSError, match="shorter"):
        connection.put(source, str(target))
    assert not target.exists()


def test_a_limit_of_the_size_of_files_is_no_outage(
    servers: Servers, connect: Connect, tmp_path: Path
) -> None:
    """As `ulimit -f` in a start-up file: waiting does not help."""
    server = servers()
    connection = connect(server)
    assert connection.run(["true"]).code == 0
    for pid in server.sessions():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    source = tmp_path / "source"
    source.write_bytes(bytes(3 << 20))
    with pytest.raises(OSError, match="limit") as raised:
        connection.put(source, str(tmp_path / "there" / "target"))
    assert raised.value.errno == errno.EFBIG
    assert list((tmp_path / "there").iterdir()) == []


def test_without_tar(servers: Servers, connect: Connect, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "wc", "mv", "rm", "mkdir", "chmod"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    connection = connect(servers(SetEnv=f"SHLVL=5 PATH={tools}"))
    assert connection.run(["tar"]).code == 127
    connection.put_many([File(str(tmp_path / f"f{n}"), b"%d" % n) for n in range(3)])
    assert [(tmp_path / f"f{n}").read_bytes() for n in range(3)] == [b"0", b"1", b"2"]


def test_where_a_file_may_go(connection: SshConnection) -> None:
    for target in ("relative", "/a/../b", "/a/"):
        with pytest.raises(ValueError, match="absolute path"):
            connection.put(b"", target)


def test_a_disk_that_hangs(
    servers: Servers, connect: Connect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ssh_files, "_STALL_SECONDS", 0.5)
    tools, disk, file = (tmp_path / name for name in ("tools", "disk", "file"))
    tools.mkdir()
    os.mkfifo(disk)
    (tools / "cat").write_text(f"#!/bin/sh\nread answer <{disk}\n")
    (tools / "cat").chmod(0o755)
    file.write_bytes(b"x")
    connection = connect(servers(SetEnv=f"PATH={tools}:{os.environ['PATH']}"))
    with pytest.raises(NodeUnreachable, match=r"stood still for \d+ s"):
        list(connection.read(str(file)))

    def nothing_reads() -> bool:
        # The disk is back: whoever opens it reads its end. The login shell there may call `cat`, too.
        os.close(os.open(disk, os.O_RDWR | os.O_NONBLOCK))
        return not running(str(tools / "cat")) and not running(str(file))

    eventually(nothing_reads, what="no command waits for the disk")


def test_secrets_are_on_no_command_line(connection: SshConnection, tmp_path: Path) -> None:
    secret = f"hunter2-{os.getpid()}"
    seen: list[bytes] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            for entry in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = entry.read_bytes()
                except OSError:
                    continue
                if secret.encode() in line or b"hunter2" in line:
                    seen.append(line)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for number in range(15):
            log = tmp_path / f"log{number}"
            connection.start(
                ["sh", "-c", 'echo "$TOKEN"'], log=str(log), environment={"TOKEN": secret}
            )
            connection.put(secret.encode(), str(tmp_path / "secret"))
            connection.put_many(
                [File(str(tmp_path / f"secret{n}"), secret.encode()) for n in range(3)]
            )
            connection.run(["cat"], input=secret.encode())
            eventually(lambda: log.read_bytes() == secret.encode() + b"\n")  # noqa: B023
    finally:
        done.set()
        watcher.join()
    assert seen == []


def test_variables_without_a_name(connection: SshConnection, tmp_path: Path) -> None:
    for name in ("A B", "A;id", "", "1A", "A=B"):
        with pytest.raises(ValueError, match="name of a variable"):
            connection.start(["true"], log=str(tmp_path / "log"), environment={name: "x"})
