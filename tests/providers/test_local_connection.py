"""This machine as a node: commands, detached processes, files whole or not at all, terminals, streams."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flowlite.connect.local import LocalConnection
from tests.helpers import eventually

ROOT = Path(__file__).resolve().parent.parent.parent
BIG = os.urandom(1 << 16) * 40


@pytest.fixture
def connection() -> LocalConnection:
    return LocalConnection()


def test_run(connection: LocalConnection) -> None:
    done = connection.run(["sh", "-c", "cat; echo e >&2; exit 3"], input=b"given\n")
    assert (done.code, done.stdout, done.stderr) == (3, b"given\n", b"e\n")
    assert connection.run(["sh", "-c", "kill -9 $$"]).code == -9
    assert connection.run(["cat"]).stdout == b""


def test_a_command_that_is_not_there(connection: LocalConnection, tmp_path: Path) -> None:
    done = connection.run(["no-such-command"])
    assert done.code == 127
    assert b"no-such-command" in done.stderr
    assert connection.run([str(tmp_path)]).code == 126


def test_a_command_that_takes_too_long_is_killed(
    connection: LocalConnection, tmp_path: Path
) -> None:
    note, seconds = tmp_path / "pid", 0.25
    # A busy machine takes its time to begin.
    while not note.exists() or not note.read_text():
        with pytest.raises(TimeoutError, match=rf"within {seconds} s"):
            connection.run(["sh", "-c", f"echo $$ > {note}; exec sleep 1000"], timeout=seconds)
        seconds *= 2
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


@pytest.mark.needs("ps")
def test_a_started_process_stands_alone(connection: LocalConnection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    text = 'echo "$A $(ps -o sid= -p $$)"; pwd; cat; sleep 60'
    pid = connection.start(["sh", "-c", text], log=str(log), environment={"A": "x"})
    try:
        lines = eventually(lambda: len(found := log.read_text().splitlines()) > 2 and found)
        assert lines[0] == "before"
        assert lines[1].split() == ["x", str(pid)]
        assert lines[2] == "/"
        assert os.getsid(pid) == pid
    finally:
        os.killpg(pid, 9)


@pytest.mark.parametrize("content", [b"", b"small", BIG], ids=["empty", "small", "big"])
def test_files_there_and_back(connection: LocalConnection, tmp_path: Path, content: bytes) -> None:
    source, there, back = tmp_path / "source", tmp_path / "a" / "b" / "there", tmp_path / "back"
    source.write_bytes(content)
    source.chmod(0o600)
    connection.put(source, str(there))
    connection.put(content, str(tmp_path / "c" / "bytes"), mode=0o700)
    connection.get(str(there), back)
    assert there.read_bytes() == back.read_bytes() == content
    assert there.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "c" / "bytes").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert b"".join(connection.read(str(there))) == content
    assert b"".join(connection.read(str(there), 3)) == content[3:]
    connection.get(str(there), back)
    assert not list(tmp_path.rglob("*.part"))


def test_big_files_are_not_copied(connection: LocalConnection, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(BIG)
    source.chmod(0o600)
    connection.put(source, str(tmp_path / "there"))
    assert os.path.samefile(source, tmp_path / "there")
    connection.put(source, str(tmp_path / "public"), mode=0o644)
    assert not os.path.samefile(source, tmp_path / "public")
    assert source.stat().st_mode & 0o777 == 0o600


def test_what_is_not_there(connection: LocalConnection, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        connection.get(missing, tmp_path / "target")
    with pytest.raises(FileNotFoundError):
        list(connection.read(missing))
    with pytest.raises(FileNotFoundError):
        connection.put(Path(missing), str(tmp_path / "target"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"small", BIG], ids=["small", "big"])
def test_what_is_there_already_is_left_alone(
    connection: LocalConnection, tmp_path: Path, content: bytes
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    connection.put_cached(source, str(target), sha256)
    before = target.stat()
    connection.put_cached(source, str(target), sha256)
    assert target.stat().st_ino == before.st_ino
    target.unlink()
    target.write_bytes(b"x" * len(content))
    connection.put_cached(source, str(target), sha256)
    assert target.read_bytes() == content


_STREAM = """
import sys
from flowlite.connect.local import LocalConnection
sys.exit(LocalConnection().stream(sys.argv[2:], terminal=sys.argv[1] == "terminal"))
"""


def stream(how: str, *argv: str, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _STREAM, how, *argv],
        input=given,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=90,
        check=False,
    )


def test_a_command_on_our_own_streams() -> None:
    done = stream("plain", "sh", "-c", "cat; echo e >&2; exit 5", given="x\n")
    assert (done.returncode, done.stdout, done.stderr) == (5, "x\n", "e\n")
    assert stream("plain", "sh", "-c", "kill -TERM $$").returncode == 143
    assert stream("plain", "no-such-command").returncode == 127


def test_a_command_gets_a_terminal_if_asked_for() -> None:
    done = stream("terminal", "sh", "-c", "test -t 0 && test -t 1 && echo yes; exit 4")
    assert done.returncode == 4
    assert "yes" in done.stdout


def test_a_tcp_stream(connection: LocalConnection) -> None:
    async def talk() -> bytes:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await connection.open_tcp("127.0.0.1", port)
        writer.write(b"hello\n")
        found = await reader.read()
        writer.close()
        server.close()
        return found

    assert asyncio.run(talk()) == b"hello\n"
