"""Commands and files over a connection to a node."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from flowlite.connect.base import Connection
from flowlite.connect.values import File
from flowlite.errors import ProviderError
from flowlite.provider import Instance
from flowlite.testing.base import Suite
from flowlite.testing.launching import Intend, alive, settings_of
from flowlite.testing.subject import ProviderUnderTest

BIG = os.urandom(1 << 20) * 5
AWKWARD = ["", " ", "a b", "'", '"', "$HOME", "`id`", "*", "\\", "a\nb", "é☃", "-n", "--", ";", "~"]


class Reached(Suite):
    """The base of tests that need a connection to one node."""

    @pytest.fixture
    def node(self, subject: ProviderUnderTest, intend: Intend) -> Instance:
        """A launched node."""
        return subject.launch(intend(count=1))[0]

    @pytest.fixture
    def connection(self, subject: ProviderUnderTest, node: Instance) -> Iterator[Connection]:
        """A connection to the node."""
        with subject.reach(node) as connection:
            yield connection

    @pytest.fixture
    def place(
        self, subject: ProviderUnderTest, node: Instance, connection: Connection
    ) -> Iterator[str]:
        """A directory on the node for this test only."""
        directory = f"{settings_of(subject, node).home}/conformance"
        assert connection.run(["mkdir", "-p", directory]).code == 0
        yield directory
        with suppress(ProviderError):
            connection.run(["rm", "-rf", directory])


class CommandTests(Reached):
    """`run` and `start`."""

    def test_a_command_gives_its_status_and_both_outputs(self, connection: Connection) -> None:
        done = connection.run(["sh", "-c", "cat; echo err >&2; exit 3"], input=b"in\0\xff")
        assert (done.code, done.stdout, done.stderr) == (3, b"in\0\xff", b"err\n")

    def test_without_input_a_command_reads_nothing(self, connection: Connection) -> None:
        assert connection.run(["cat"], timeout=90).stdout == b""

    def test_arguments_arrive_as_they_are(self, connection: Connection) -> None:
        done = connection.run(["printf", "%s\\0", *AWKWARD])
        assert done.stdout.decode().split("\0")[:-1] == AWKWARD

    def test_much_output_arrives_whole(self, connection: Connection) -> None:
        done = connection.run(
            ["sh", "-c", "cat; head -c 1000000 /dev/zero >&2"], input=BIG[: 2 << 20]
        )
        assert done.stdout == BIG[: 2 << 20]
        assert len(done.stderr) == 1_000_000

    def test_a_signal_is_told_apart_from_a_status(self, connection: Connection) -> None:
        assert connection.run(["sh", "-c", "kill -9 $$"]).code == -9

    def test_a_command_that_is_not_there(self, connection: Connection) -> None:
        done = connection.run(["flowlite-no-such-command"])
        assert done.code == 127
        assert b"flowlite-no-such-command" in done.stderr

    def test_a_command_that_takes_too_long_is_killed(
        self, subject: ProviderUnderTest, connection: Connection, place: str
    ) -> None:
        script = f"echo $$ > {place}/pid; exec sleep 1000"
        # A busy machine may need longer to begin than the command is given.
        said, seconds = b"", 1.0
        while not said:
            with pytest.raises(TimeoutError):
                connection.run(["sh", "-c", script], timeout=seconds)
            said = connection.run(["cat", f"{place}/pid"]).stdout
            seconds *= 2
        pid = int(said)
        subject.eventually(lambda: not alive(connection, pid), "the command is gone")

    def test_commands_run_side_by_side(self, connection: Connection, place: str) -> None:
        # Each command waits for all others, so run one after another they would never end.
        count = 6
        script = (
            f"touch {place}/c$0; until [ $(ls {place} | wc -l) -ge {count} ]; do sleep 0.02; done"
        )
        codes: list[int] = []

        def run(number: int) -> None:
            codes.append(connection.run(["sh", "-c", script, str(number)], timeout=90).code)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes == [0] * count

    def test_a_started_command_outlives_the_connection(
        self, subject: ProviderUnderTest, node: Instance, connection: Connection, place: str
    ) -> None:
        connection.put(b"before\n", f"{place}/log")
        script = 'echo "$WORD $$"; ps -o sid= -p $$; exec sleep 1000'
        with subject.reach(node) as other:
            pid = other.start(
                ["sh", "-c", script], log=f"{place}/log", environment={"WORD": "a 'b' $c"}
            )

        def lines() -> list[str]:
            found = connection.run(["cat", f"{place}/log"]).stdout.decode().splitlines()
            return found if len(found) == 3 else []

        before, said, session = subject.eventually(lines, "the command has said all")
        assert (before, said, int(session)) == ("before", f"a 'b' $c {pid}", pid)
        assert connection.run(["kill", str(pid)]).code == 0
        subject.eventually(lambda: not alive(connection, pid), "the command is gone")

    def test_closing_twice_is_no_error(self, subject: ProviderUnderTest, node: Instance) -> None:
        connection = subject.reach(node)
        connection.close()
        connection.close()


class FileTests(Reached):
    """`put`, `put_cached`, `put_many`, `get` and `read`."""

    def test_files_arrive_whole_with_their_mode(
        self, connection: Connection, place: str, tmp_path: Path
    ) -> None:
        source = tmp_path / "source"
        source.write_bytes(BIG)
        connection.put(source, f"{place}/new/deep/file", mode=0o640)
        connection.put(b"#!/bin/sh\necho ran\n", f"{place}/program", mode=0o700)
        assert connection.run([f"{place}/program"]).stdout == b"ran\n"
        assert _sha256(connection, f"{place}/new/deep/file") == hashlib.sha256(BIG).hexdigest()
        assert _mode(connection, f"{place}/new/deep/file") == "640"
        assert _mode(connection, f"{place}/new") == _mode(connection, f"{place}/new/deep") == "700"

    def test_a_file_is_replaced_in_one_step(self, connection: Connection, place: str) -> None:
        connection.put(b"old" * 1000, f"{place}/file")
        connection.run(["sh", "-c", f"exec 3< {place}/file; ln {place}/file {place}/before"])
        connection.put(b"new", f"{place}/file")
        assert connection.run(["cat", f"{place}/before"]).stdout == b"old" * 1000
        assert connection.run(["cat", f"{place}/file"]).stdout == b"new"
        assert connection.run(["ls", "-A", place]).stdout.split() == [b"before", b"file"]

    def test_a_file_that_cannot_be_written_leaves_the_old_one(
        self, connection: Connection, place: str
    ) -> None:
        connection.put(b"old", f"{place}/file")
        with pytest.raises((OSError, ProviderError)):
            connection.put(b"new", f"{place}/file/below")
        assert connection.run(["cat", f"{place}/file"]).stdout == b"old"

    def test_what_is_there_already_is_not_sent_again(
        self, connection: Connection, place: str, tmp_path: Path
    ) -> None:
        source, target = tmp_path / "source", f"{place}/file"
        source.write_bytes(BIG)
        sha256 = hashlib.sha256(BIG).hexdigest()
        connection.put_cached(source, target, sha256)
        first = connection.run(["stat", "-c", "%i %Y", target]).stdout
        connection.put_cached(source, target, sha256)
        assert connection.run(["stat", "-c", "%i %Y", target]).stdout == first
        connection.run(["sh", "-c", f"rm {target}; head -c {len(BIG)} /dev/zero > {target}"])
        connection.put_cached(source, target, sha256)
        assert _sha256(connection, target) == sha256

    def test_a_cache_keeps_content_by_its_hash(
        self, connection: Connection, place: str, tmp_path: Path
    ) -> None:
        source, cache = tmp_path / "source", f"{place}/cache"
        source.write_bytes(BIG)
        sha256 = hashlib.sha256(BIG).hexdigest()
        for target in (f"{place}/one", f"{place}/two"):
            connection.put_cached(source, target, sha256, cache=cache)
            assert _sha256(connection, target) == sha256
        assert connection.run(["ls", cache]).stdout.split() == [sha256.encode()]

    def test_many_files_at_once(self, connection: Connection, place: str, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(BIG)
        files = [File(f"{place}/many/{i}", f"content {i}".encode(), 0o600) for i in range(20)]
        connection.put_many([*files, File(f"{place}/many/big", source, 0o644)])
        for file in files:
            assert connection.run(["cat", file.target]).stdout == file.content
        assert _mode(connection, f"{place}/many/7") == "600"
        assert _sha256(connection, f"{place}/many/big") == hashlib.sha256(BIG).hexdigest()

    def test_files_come_back_whole_or_not_at_all(
        self, connection: Connection, place: str, tmp_path: Path
    ) -> None:
        connection.put(BIG, f"{place}/file")
        connection.get(f"{place}/file", tmp_path / "new" / "file")
        assert (tmp_path / "new" / "file").read_bytes() == BIG
        with pytest.raises(FileNotFoundError):
            connection.get(f"{place}/absent", tmp_path / "new" / "file")
        assert (tmp_path / "new" / "file").read_bytes() == BIG
        assert os.listdir(tmp_path / "new") == ["file"]

    def test_a_fetch_goes_on_where_it_broke_off(
        self, connection: Connection, place: str, tmp_path: Path
    ) -> None:
        connection.put(BIG, f"{place}/file", mode=0o644)
        # Mark the partial file, to see whether its bytes are fetched again.
        (tmp_path / ".file.part").write_bytes(b"-" * 1000)
        connection.get(f"{place}/file", tmp_path / "file", size=len(BIG))
        assert (tmp_path / "file").read_bytes() == b"-" * 1000 + BIG[1000:]
        assert os.listdir(tmp_path) == ["file"]

    def test_a_file_is_read_from_an_offset(self, connection: Connection, place: str) -> None:
        connection.put(BIG, f"{place}/file")
        for offset in (0, 1, 1 << 20, len(BIG) - 1, len(BIG), len(BIG) + 7):
            came = b"".join(connection.read(f"{place}/file", offset))
            assert came == BIG[offset:], f"from {offset}"

    def test_a_file_that_is_not_there_is_not_an_empty_one(
        self, connection: Connection, place: str
    ) -> None:
        connection.put(b"", f"{place}/empty")
        assert b"".join(connection.read(f"{place}/empty")) == b""
        with pytest.raises(FileNotFoundError):
            list(connection.read(f"{place}/absent"))


def _sha256(connection: Connection, path: str) -> str:
    return connection.run(["sha256sum", path]).stdout.decode().split()[0]


def _mode(connection: Connection, path: str) -> str:
    return connection.run(["stat", "-c", "%a", path]).stdout.decode().strip()
