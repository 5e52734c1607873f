"""What every connection does, local or by SSH: commands, processes that stay, files whole or not at all, streams."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import resource
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowlite.connect.base import Connection
from flowlite.connect.local import LocalConnection
from flowlite.connect.values import File
from tests.helpers import eventually

BIG = os.urandom(1 << 16) * 40
MUCH = 20_000_000
PROBE = "import os, sys; sys.stdout.buffer.write(b'\\n'.join(os.fsencode(a).hex().encode() for a in sys.argv[1:]))"


@pytest.fixture(params=["local", "ssh"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    if request.param == "local":
        yield LocalConnection()
    else:
        connect = request.getfixturevalue("connect")
        yield connect(request.getfixturevalue("server"))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# Commands


def test_run(connection: Connection) -> None:
    done = connection.run(["sh", "-c", "cat; echo e >&2; exit 3"], input=b"given\n")
    assert (done.code, done.stdout, done.stderr) == (3, b"given\n", b"e\n")
    assert connection.run(["cat"]).stdout == b""


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV", "USR1"])
def test_a_signal_is_a_negative_code(connection: Connection, name: str) -> None:
    import signal

    done = connection.run(["sh", "-c", f"ulimit -c 0; kill -{name} $$"])
    assert done.code == -getattr(signal, f"SIG{name}")


def test_codes_that_look_like_signals_are_codes(connection: Connection) -> None:
    for code in (0, 1, 127, 130, 137, 143, 255):
        assert connection.run(["sh", "-c", f"exit {code}"]).code == code


def test_a_command_that_cannot_be_run(connection: Connection, tmp_path: Path) -> None:
    done = connection.run(["no-such-command"])
    assert done.code == 127
    assert b"no-such-command" in done.stderr
    assert connection.run([str(tmp_path)]).code == 126


def test_a_command_that_takes_too_long_is_killed(connection: Connection, tmp_path: Path) -> None:
    note, seconds = tmp_path / "pid", 0.5
    # A busy machine takes its time to begin.
    while not note.exists():
        with pytest.raises(TimeoutError, match=rf"sh did not end within {seconds} s"):
            connection.run(["sh", "-c", f"echo $$ > {note}; exec sleep 1000"], timeout=seconds)
        seconds *= 2
    pid = int(eventually(note.read_text))
    eventually(lambda: not _alive(pid), what="the command is gone")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


def test_much_in_both_directions_at_once(connection: Connection) -> None:
    # More than all buffers on the way hold: whoever sends all before reading would wait for ever.
    text = "import sys, shutil; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer, 65536)"
    content = os.urandom(1 << 20) * 12
    done = connection.run([sys.executable, "-c", text], input=content, timeout=90, most=MUCH)
    assert sha256(done.stdout) == sha256(content)


def test_much_on_both_outputs(connection: Connection) -> None:
    text = "import sys\nfor _ in range(80):\n sys.stdout.write('o' * 100000); sys.stderr.write('e' * 100000)"
    done = connection.run([sys.executable, "-c", text], timeout=90, most=MUCH)
    assert (done.stdout, done.stderr) == (b"o" * 8_000_000, b"e" * 8_000_000)


def test_input_that_nobody_reads(connection: Connection) -> None:
    assert connection.run(["true"], input=BIG * 4, timeout=90).code == 0


def test_argument_with_nul(connection: Connection) -> None:
    with pytest.raises(ValueError, match=r"null|NUL"):
        connection.run(["echo", "a\0b"])


words = st.text(st.characters(exclude_characters="\0", exclude_categories=()), max_size=40).filter(
    lambda text: not any(0xD800 <= ord(c) < 0xDC80 or 0xDCFF < ord(c) <= 0xDFFF for c in text)
)
odd = st.text(alphabet="'\"\\$`!\n\t *?[]{}()<>|&;#~=%-^\r\x01\x7f\udc80\udcff", max_size=12)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(words | odd, max_size=5))
def test_arguments_arrive_byte_by_byte(connection: Connection, arguments: list[str]) -> None:
    done = connection.run([sys.executable, "-I", "-S", "-c", PROBE, "-", *arguments], timeout=90)
    assert done.stdout.split(b"\n")[1:] == [os.fsencode(a).hex().encode() for a in arguments]


def test_output_as_it_comes(connection: Connection, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    seen: list[tuple[str, bytes]] = []

    def take(stream: str, block: bytes) -> None:
        seen.append((stream, block))
        if block.endswith(b"first\n"):
            # The command waits for this: it cannot have ended.
            gate.write_bytes(b"go\n")

    code = connection.follow(
        ["sh", "-c", f"echo first; read x < {gate}; echo second >&2; exit 4"], take
    )
    assert code == 4
    assert b"".join(block for stream, block in seen if stream == "out") == b"first\n"
    assert b"".join(block for stream, block in seen if stream == "err") == b"second\n"


# Processes that stay


@pytest.mark.needs("ps")
def test_a_started_process_stands_alone(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    text = 'echo "$A $(ps -o sid= -p $$)"; pwd; cat; umask; exec sleep 60'
    pid = connection.start(["sh", "-c", text], log=str(log), environment={"A": "x 'y'"})
    try:
        lines = eventually(lambda: len(found := log.read_text().splitlines()) > 3 and found)
        assert lines[:3] == ["before", lines[1], "/"]
        assert lines[1].split() == ["x", "'y'", str(pid)]
        assert int(lines[3], 8) == _umask()
        connection.close()
        assert _alive(pid)
    finally:
        os.kill(pid, 9)


def _umask() -> int:
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


def test_the_log_is_private(connection: Connection, tmp_path: Path) -> None:
    log = tmp_path / "log"
    connection.start(["true"], log=str(log), environment={})
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_starting_what_is_not_there(connection: Connection, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connection.start(["no-such-command"], log=str(tmp_path / "log"), environment={})
    with pytest.raises(FileNotFoundError):
        connection.start(["true"], log=str(tmp_path / "no" / "log"), environment={})


def test_variables_of_a_started_process_arrive(connection: Connection, tmp_path: Path) -> None:
    value = "a'b\"c\\d\ne$HOME `id` \udcff é!"
    log = tmp_path / "log"
    text = "import os, sys; sys.stdout.buffer.write(os.fsencode(os.environ['SECRET_VALUE']))"
    connection.start(
        [sys.executable, "-c", text], log=str(log), environment={"SECRET_VALUE": value}
    )
    assert eventually(log.read_bytes) == os.fsencode(value)


# Files


def test_put(connection: Connection, tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "it's a file"
    connection.put(b"content", str(target))
    assert target.read_bytes() == b"content"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    for directory in (target.parent, target.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    source = tmp_path / "source"
    source.write_bytes(BIG)
    connection.put(source, str(target), mode=0o755)
    assert target.read_bytes() == BIG
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert _leftovers(tmp_path) == []


def test_put_nothing(connection: Connection, tmp_path: Path) -> None:
    connection.put(b"", str(tmp_path / "empty"))
    assert (tmp_path / "empty").read_bytes() == b""
    connection.put_many([])


def _leftovers(directory: Path) -> list[str]:
    return [str(path) for path in directory.rglob("*") if path.name.endswith(".part")]


def test_a_file_that_cannot_be_put_leaves_what_was_there(
    connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        connection.put(b"x", str(tmp_path / "file" / "below"))
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        connection.put(b"x", str(tmp_path / "directory"))
    assert list((tmp_path / "directory").iterdir()) == []
    assert _leftovers(tmp_path) == []


def test_a_disk_that_becomes_full_is_named_by_the_file(tmp_path: Path) -> None:
    """As a disk that fills up with a write, a limit of the size of files ends one without a word of the file."""
    target = tmp_path / "there" / "target"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=re.escape(str(target))):
            LocalConnection().put(b"x" * 150_000, str(target))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(target.parent.iterdir()) == []


def test_a_source_that_is_not_there(connection: Connection, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connection.put(tmp_path / "missing", str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


def test_put_cached_goes_by_content(connection: Connection, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"content")
    connection.put_cached(source, str(target), sha256(b"content"))
    before = target.stat().st_mtime_ns, target.stat().st_ino
    connection.put_cached(source, str(target), sha256(b"content"))
    assert (target.stat().st_mtime_ns, target.stat().st_ino) == before
    # The right length and name are not enough.
    target.write_bytes(b"cantent")
    connection.put_cached(source, str(target), sha256(b"content"))
    assert target.read_bytes() == b"content"


@pytest.mark.parametrize("many", [False, True])
def test_a_cache_is_shared(connection: Connection, tmp_path: Path, many: bool) -> None:
    source, cache = tmp_path / "source", tmp_path / "cache"
    source.write_bytes(BIG)
    name = sha256(BIG)

    def put(task: str, mode: int = 0o600) -> Path:
        target = tmp_path / task / "file"
        if many:
            connection.put_many(
                [
                    File(str(target), source, mode, name, str(cache)),
                    File(str(target.with_name("other")), b"other"),
                ]
            )
        else:
            connection.put_cached(source, str(target), name, mode=mode, cache=str(cache))
        return target

    first = put("one")
    kept = cache / name
    assert first.read_bytes() == kept.read_bytes() == BIG
    written = kept.stat().st_mtime_ns if not os.path.samefile(first, kept) else None
    second = put("two")
    assert second.read_bytes() == BIG
    assert os.path.samefile(first, second) or written is not None
    third = put("three", 0o700)
    assert stat.S_IMODE(third.stat().st_mode) == 0o700
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    # What rots in the cache is found out.
    kept.unlink()
    kept.write_bytes(BIG[:-1] + b"!")
    assert put("four").read_bytes() == BIG
    assert kept.read_bytes() == BIG
    assert _leftovers(tmp_path) == []


def test_put_many(connection: Connection, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(BIG)
    files = [
        File(str(tmp_path / "x" / "small"), b"small"),
        File(str(tmp_path / "y" / "it's \\ odd\n\udcff é"), b"odd", 0o700),
        File(str(tmp_path / "x" / "big"), source, 0o640, sha256(BIG)),
        File(str(tmp_path / "x" / "empty"), b""),
        File(str(tmp_path / "x" / ("n" * 150)), b"long name"),
    ]
    began = time.time()
    for _ in range(2):
        connection.put_many(files)
        for file in files:
            content = file.content if isinstance(file.content, bytes) else BIG
            path = Path(file.target)
            assert path.read_bytes() == content
            assert stat.S_IMODE(path.stat().st_mode) == file.mode
            # Python and make tell by its time whether a file has changed.
            assert path.stat().st_mtime > began - 60
    assert _leftovers(tmp_path) == []


def test_get(connection: Connection, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    source.write_bytes(BIG)
    connection.get(str(source), target)
    assert target.read_bytes() == BIG
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with pytest.raises(FileNotFoundError):
        connection.get(str(tmp_path / "missing"), target)
    assert target.read_bytes() == BIG
    assert _leftovers(tmp_path) == []


def test_get_goes_on_where_it_broke_off(connection: Connection, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    source.write_bytes(BIG)
    source.chmod(0o644)
    target.parent.mkdir()
    # Marked, so that it shows whether it was fetched again.
    part = target.with_name(".target.part")
    part.write_bytes(b"-" * 1000 + BIG[1000:5000])
    connection.get(str(source), target, size=len(BIG))
    assert target.read_bytes() == b"-" * 1000 + BIG[1000:]
    assert _leftovers(tmp_path) == []


def test_read_from_an_offset(connection: Connection, tmp_path: Path) -> None:
    path = tmp_path / "-n file"
    path.write_bytes(BIG)
    for offset in (0, 1, 511, 1 << 16, len(BIG) - 1, len(BIG), len(BIG) + 5):
        assert b"".join(connection.read(str(path), offset)) == BIG[offset:]
    with pytest.raises(FileNotFoundError):
        list(connection.read(str(tmp_path / "missing")))
    with pytest.raises(IsADirectoryError):
        list(connection.read(str(tmp_path)))


def test_what_never_ends_is_not_read(connection: Connection, tmp_path: Path) -> None:
    """A task can put a pipe or a device where it should have left a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            list(connection.read(str(path)))
        with pytest.raises(OSError, match="not a regular file"):
            connection.get(str(path), tmp_path / "here", size=10)
    assert not (tmp_path / "here").exists()


def test_a_reader_may_stop_early(connection: Connection, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(BIG * 8)
    for _ in range(12):
        blocks = connection.read(str(path))
        assert BIG.startswith(next(blocks)[:1024])
        blocks.close()  # type: ignore[attr-defined]
    assert connection.run(["true"]).code == 0


# Streams


def test_stream_uses_our_own_output(
    connection: Connection, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = 'echo out; echo "$1"; echo err >&2; exit 7'
    code = connection.stream(["sh", "-c", text, "sh", "it's $HOME"], terminal=False)
    out, err = capfd.readouterr()
    assert (code, out) == (7, "out\nit's $HOME\n")
    assert "err\n" in err


def test_a_tcp_stream(connection: Connection) -> None:
    async def scenario() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while block := await reader.read(65536):
                writer.write(block)
                await writer.drain()
            writer.write(b"the end")
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await connection.open_tcp("127.0.0.1", port)

        async def send() -> None:
            for position in range(0, len(BIG), 100_000):
                writer.write(BIG[position : position + 100_000])
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        assert await reader.read() == BIG + b"the end"
        await sending
        writer.close()
        await writer.wait_closed()
        server.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_tcp_stream_to_nobody(connection: Connection, unused_port: int) -> None:
    async def scenario() -> None:
        with pytest.raises(OSError, match=str(unused_port)):
            await connection.open_tcp("127.0.0.1", unused_port)

    asyncio.run(scenario())


@pytest.fixture
def unused_port() -> int:
    from tests.connect.sshd import free_port

    return free_port()


def test_close_twice(connection: Connection) -> None:
    connection.run(["true"])
    connection.close()
    connection.close()


def test_as_a_context_manager(connection: Connection) -> None:
    with connection as here:
        assert here.run(["true"]).code == 0


def test_many_at_a_time(connection: Connection) -> None:
    # More than one sshd opens sessions for.
    from concurrent.futures import ThreadPoolExecutor

    def one(number: int) -> bytes:
        return connection.run(["sh", "-c", f"sleep 0.1; echo {number}"], timeout=90).stdout

    with ThreadPoolExecutor(25) as pool:
        assert list(pool.map(one, range(25))) == [b"%d\n" % n for n in range(25)]
