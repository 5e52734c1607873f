"""A courier on a host: used where it is there, and missed by nobody where it is not."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.connect.ssh import commands, courier
from flowlite.connect.ssh import files as ssh_files
from flowlite.connect.ssh.connection import SshConnection
from flowlite.connect.values import File
from flowlite.errors import NodeUnreachable
from flowlite.node.system import processes
from tests.connect.sshd import Sshd
from tests.helpers import eventually

Servers = Callable[..., Sshd]
Connect = Callable[..., SshConnection]

_HELLO = {"do": "hello"}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    built = build_agent_zip(tmp_path_factory.mktemp("home"))
    return [sys.executable, "-I", "-S", str(built.path), "courier"]


def _couriers(program: list[str]) -> set[int]:
    """Those of that program that run now; others are those of other tests."""
    found = set()
    for pid in processes.table():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"courier" in words and program[3].encode() in words:
            found.add(pid)
    return found


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What shells are given to do."""
    given: list[bytes] = []
    begin = commands.Run.begin

    def noting(self: commands.Run, text: bytes, private: bool) -> None:
        given.append(text)
        begin(self, text, private)

    monkeypatch.setattr(commands.Run, "begin", noting)
    return given


def test_nobody_starts_one_unasked(connection: SshConnection, tmp_path: Path) -> None:
    assert connection.ask(_HELLO, timeout=10) is None
    connection.put(b"text", str(tmp_path / "file"))
    assert (tmp_path / "file").read_bytes() == b"text"


def test_files_come_and_go_without_a_shell(
    servers: Servers, connect: Connect, program: list[str], tmp_path: Path, scripts: list[bytes]
) -> None:
    connection = connect(servers())
    assert connection.ask(_HELLO, timeout=90, start=program) == {"size": 0}
    scripts.clear()
    files = [File(str(tmp_path / "d" / name), name.encode(), 0o640) for name in ("a", "b")]
    connection.put_many(files)
    assert b"".join(connection.read(str(tmp_path / "d" / "b"))) == b"b"
    assert stat.S_IMODE((tmp_path / "d" / "a").stat().st_mode) == 0o640
    with pytest.raises(FileNotFoundError, match=r"box.*cannot read .*absent: it is not there"):
        list(connection.read(str(tmp_path / "absent")))
    assert connection.ask(_HELLO, timeout=90, start=program) == {"size": 0}
    assert scripts == []


def test_what_it_cannot_do_is_done_by_a_shell(
    servers: Servers, connect: Connect, program: list[str], tmp_path: Path
) -> None:
    connection = connect(servers())
    connection.ask(_HELLO, timeout=90, start=program)
    big = tmp_path / "big"
    big.write_bytes(os.urandom(3 << 20))
    connection.put(big, str(tmp_path / "copy"))
    assert b"".join(connection.read(str(tmp_path / "copy"))) == big.read_bytes()
    with pytest.raises(IsADirectoryError, match="it is a directory"):
        list(connection.read(str(tmp_path)))
    with pytest.raises(OSError, match="cannot write"):
        connection.put(b"x", str(big / "below"))
    log = tmp_path / "log"
    pid = connection.start(["sleep", "60"], log=str(log), environment={"A": "b"})
    # The shell tells the number of the process before this has become the program.
    eventually(lambda: processes.environment_of(pid).get("A") == "b")
    os.kill(pid, signal.SIGKILL)


def test_one_that_was_killed_is_no_loss(
    servers: Servers, connect: Connect, program: list[str], tmp_path: Path
) -> None:
    before = _couriers(program)
    connection = connect(servers())
    connection.ask(_HELLO, timeout=90, start=program)
    [pid] = _couriers(program) - before
    os.kill(pid, signal.SIGKILL)
    connection.put(b"text", str(tmp_path / "file"))
    assert b"".join(connection.read(str(tmp_path / "file"))) == b"text"
    assert connection.ask(_HELLO, timeout=10) is None
    assert connection.ask(_HELLO, timeout=90, start=program) == {"size": 0}


def test_it_ends_with_its_connection(
    servers: Servers, connect: Connect, program: list[str]
) -> None:
    before = _couriers(program)
    server = servers()
    connection = connect(server)
    connection.ask(_HELLO, timeout=90, start=program)
    [pid] = _couriers(program) - before
    server.cut()
    eventually(lambda: not processes.is_alive(pid), what="the courier to end")
    assert connection.run(["true"]).code == 0


def test_another_program_takes_its_place(
    servers: Servers, connect: Connect, program: list[str], tmp_path: Path
) -> None:
    before = _couriers(program)
    connection = connect(servers())
    connection.ask(_HELLO, timeout=90, start=program)
    other = tmp_path / "other.pyz"
    other.write_bytes(Path(program[3]).read_bytes())
    command = [*program[:3], str(other), program[4]]
    assert connection.ask(_HELLO, timeout=90, start=command) == {"size": 0}
    eventually(lambda: not _couriers(program) - before, what="the first one to end")
    assert len(_couriers(command)) == 1


def test_one_that_cannot_be_started_says_how_it_ended(
    servers: Servers, connect: Connect, program: list[str]
) -> None:
    connection = connect(servers())
    with pytest.raises(courier.NotStarted) as raised:
        connection.ask(_HELLO, timeout=90, start=[*program[:3], "/absent.pyz", "courier"])
    assert raised.value.code == 2
    with pytest.raises(courier.NotStarted) as raised:
        connection.ask(_HELLO, timeout=90, start=["/absent/python", *program[1:]])
    assert raised.value.code == 127
    assert connection.ask(_HELLO, timeout=90, start=program) == {"size": 0}


@pytest.mark.parametrize("sessions", ["1", "2"])
def test_a_host_with_few_sessions_has_them_for_commands(
    servers: Servers, connect: Connect, program: list[str], sessions: str
) -> None:
    connection = connect(servers(MaxSessions=sessions))
    assert connection.ask(_HELLO, timeout=90, start=program) == {"size": 0}
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda: done.append(connection.run(["true"]).code))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [0] * 4
    assert connection.ask(_HELLO, timeout=10) is None


def test_one_that_hangs_is_ended(
    servers: Servers,
    connect: Connect,
    program: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = _couriers(program)
    connection = connect(servers())
    connection.ask(_HELLO, timeout=90, start=program)
    [pid] = _couriers(program) - before
    os.kill(pid, signal.SIGSTOP)
    monkeypatch.setattr(ssh_files, "_STALL_SECONDS", 0.2)
    with pytest.raises(NodeUnreachable, match="stood still"):
        connection.put(b"x", str(tmp_path / "file"))
    eventually(lambda: not processes.is_alive(pid), what="the courier to end")
    monkeypatch.undo()
    connection.put(b"x", str(tmp_path / "file"))


def test_who_finds_it_busy_does_not_wait(
    servers: Servers, connect: Connect, program: list[str], tmp_path: Path
) -> None:
    connection = connect(servers())
    connection.ask(_HELLO, timeout=90, start=program)
    resident = connection._link.resident
    assert isinstance(resident, courier.Courier)
    with resident._turn:
        assert connection.ask(_HELLO, timeout=10) is None
        connection.put(b"x", str(tmp_path / "file"))
    assert connection.ask(_HELLO, timeout=90) == {"size": 0}


def test_a_heartbeat_sends_nobody_to_a_shell(
    servers: Servers, connect: Connect, program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell and a Python take a host a hundred times as long."""
    monkeypatch.setattr(courier, "_BEAT_TAKES", 60.0)
    connection = connect(servers())
    connection.ask(_HELLO, timeout=90, start=program)
    resident = connection._link.resident
    assert isinstance(resident, courier.Courier)
    resident._turn.acquire()
    threading.Timer(0.02, resident._turn.release).start()
    assert connection.ask(_HELLO, timeout=90) == {"size": 0}


def test_it_hears_of_its_client_and_ends_its_session_when_that_falls_silent(
    connection: SshConnection, program: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "_BEAT_SECONDS", 0.1)
    # A pause of this machine is no silence.
    monkeypatch.setattr(courier, "_SILENT_SECONDS", 8.0)
    monkeypatch.setattr(courier, "_beating", None)
    link = connection._link
    assert courier.ask(link, _HELLO, timeout=90, start=program) is not None
    (pid,) = _couriers(program)
    session = _parent(pid)
    # Beats alone keep it.
    time.sleep(10.0)
    assert _couriers(program) == {pid}
    monkeypatch.setattr(courier.Courier, "beat", lambda self: True)
    eventually(lambda: not _couriers(program))
    eventually(lambda: not processes.is_alive(session, ""))
    # Whoever has something to do there connects again, and has another one.
    assert connection.run(["true"], timeout=90).code == 0
    assert courier.ask(link, _HELLO, timeout=90) is not None
    assert len(_couriers(program)) == 1


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def test_a_subcommand_is_run_by_a_courier_and_without_one(
    servers: Servers, connect: Connect, program: list[str], tmp_path: Path, scripts: list[bytes]
) -> None:
    argv = [*program[:4], "project"]
    manifest = b'{"files": [], "links": {}, "directories": ["empty"]}'
    for name in ("without", "with"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "project.json").write_bytes(manifest)
    questions = {
        name: json.dumps({"home": str(tmp_path / name), "blobs": "/none", "packs": []}).encode()
        for name in ("without", "with")
    }
    connection = connect(servers())
    done = connection.run_program(argv, input=questions["without"], timeout=90)
    assert (done.code, done.stdout) == (0, b'{"made": true}')
    assert connection.ask(_HELLO, timeout=90, start=program) is not None
    scripts.clear()
    done = connection.run_program(argv, input=questions["with"], timeout=90)
    assert (done.code, done.stdout, scripts) == (0, b'{"made": true}', [])
    assert (tmp_path / "with" / "project" / "empty").is_dir()
    # What fails is run again by itself: the reason is on its standard error.
    done = connection.run_program(argv, input=b"{}", timeout=90)
    assert done.code == 1
    assert b"KeyError: 'home'" in done.stderr


def test_a_subcommand_that_does_not_end_is_killed(
    servers: Servers, connect: Connect, program: list[str], tmp_path: Path
) -> None:
    connection = connect(servers())
    assert connection.ask(_HELLO, timeout=90, start=program) is not None
    # To open it waits for a writer.
    os.mkfifo(tmp_path / "project.json")
    question = json.dumps({"home": str(tmp_path), "blobs": "/none", "packs": []}).encode()
    with pytest.raises(TimeoutError, match=r"did not end within 2 s"):
        connection.run_program([*program[:4], "project"], input=question, timeout=2)
    eventually(lambda: _couriers(program) == set())
    assert connection.run(["echo", "here"]).stdout == b"here\n"
