"""What only connections through a command can suffer: they break off, there is noise, bytes are held back or unread."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowlite.connect.local import LocalConnection
from flowlite.connect.step import JobGone, StepConnection, channel, pool, srun_lost
from flowlite.connect.values import File
from flowlite.errors import ConfigError, NodeUnreachable
from flowlite.node.system import processes
from tests.connect.sshd import free_port
from tests.helpers import eventually, process_alive

BIG = os.urandom(1 << 16) * 60
Step = Callable[..., StepConnection]

# As srun does: what comes after the last newline is held back.
HOLDS_BACK = """
import os, subprocess, sys, threading
child = subprocess.Popen(sys.argv[1:], stdin=0, stdout=subprocess.PIPE, bufsize=0)
held = b""
while data := child.stdout.read(1024):
    whole, newline, held = (held + data).rpartition(b"\\n")
    os.write(1, whole + newline)
os.write(1, held)
sys.exit(child.wait())
"""


def counting(tmp_path: Path, what: str = 'exec "$@"') -> tuple[str, ...]:
    """A prefix that notes each start."""
    return ("sh", "-c", f"echo x >> {tmp_path}/count; {what}", "sh")


def starts(tmp_path: Path) -> int:
    count = tmp_path / "count"
    return len(count.read_text().split()) if count.exists() else 0


class TestOneCommandForAll:
    def test_all_that_is_asked_goes_through_it(self, step: Step, tmp_path: Path) -> None:
        one, other = (step(prefix=counting(tmp_path)) for _ in range(2))

        def ask(number: int) -> bytes:
            connection = (one, other)[number % 2]
            connection.put(b"%d" % number, str(tmp_path / f"f{number}"))
            return b"".join(connection.read(str(tmp_path / f"f{number}")))

        with ThreadPoolExecutor(16) as threads:
            assert list(threads.map(ask, range(200))) == [b"%d" % number for number in range(200)]
        assert starts(tmp_path) == 1

    def test_what_the_far_end_says_of_itself(self, step: Step) -> None:
        facts = step().open()
        assert facts["host"] == os.uname().nodename
        assert facts["python"] == sys.version.split()[0]
        assert facts["daemon"] is None
        assert processes.is_alive(facts["pid"])

    def test_noise_before_it_begins(self, step: Step) -> None:
        connection = step(prefix=("sh", "-c", 'printf "Welcome!\\n\\000%%"; exec "$@"', "sh"))
        assert connection.run(["echo", "word"]).stdout == b"word\n"

    def test_its_first_line_comes_alone(self, step: Step) -> None:
        # As `srun` passes output on, line by line.
        script = '"$@" | { IFS= read -r line; echo "$line"; sleep 0.3; cat; }'
        assert step(prefix=("sh", "-c", script, "sh")).run(["echo", "there"]).stdout == b"there\n"

    def test_what_srun_holds_back(self, step: Step) -> None:
        connection = step(prefix=(sys.executable, "-c", HOLDS_BACK))
        assert connection.run(["printf", "no newline"], timeout=90).stdout == b"no newline"
        assert connection.run(["cat"], input=BIG, timeout=90).stdout == BIG

    def test_a_stream_that_nobody_reads_stops_no_other(self, step: Step, tmp_path: Path) -> None:
        path = tmp_path / "big"
        path.write_bytes(BIG)
        connection = step()
        unread = connection.read(str(path))
        first = next(unread)
        deaf = threading.Thread(
            target=connection.run, args=(["sleep", "1000"],), kwargs={"input": BIG}, daemon=True
        )
        deaf.start()
        assert connection.run(["cat"], input=BIG, timeout=90).stdout == BIG
        assert first + b"".join(unread) == BIG
        eventually(lambda: _kill_child_of(connection, b"sleep"))
        deaf.join(90)

    def test_it_is_kept_for_the_next(self, step: Step, tmp_path: Path) -> None:
        for _ in range(3):
            with step(prefix=counting(tmp_path)) as connection:
                connection.run(["true"])
        assert starts(tmp_path) == 1
        pid = connection._channel.facts(LocalConnection(), None)["pid"]
        pool.close_idle()
        eventually(lambda: not process_alive(pid), what="the far end has ended")

    def test_a_closed_connection(self, step: Step) -> None:
        connection = step()
        connection.close()
        connection.close()
        with pytest.raises(NodeUnreachable, match="node n1: this connection was closed"):
            connection.run(["true"])

    def test_nobody_can_log_in(self, step: Step, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="flow ssh"):
            step().ssh_entry("flow-0", tmp_path)


def _kill_child_of(connection: StepConnection, name: bytes) -> bool:
    for pid in processes.descendants([connection.open()["pid"]]):
        if name in Path(f"/proc/{pid}/cmdline").read_bytes():
            return processes.send(pid, signal.SIGKILL)
    return False


class TestBreakingOff:
    @pytest.fixture(params=["alone", "carried"])
    def connection(self, request: pytest.FixtureRequest, step: Step) -> StepConnection:
        return step() if request.param == "alone" else step(step(prefix=()))

    def test_killed_in_the_middle_of_a_command(self, connection: StepConnection) -> None:
        pid = connection.open()["pid"]
        seen: list[bytes] = []

        def take(_: str, block: bytes) -> None:
            seen.append(block)
            os.kill(pid, signal.SIGKILL)

        with pytest.raises(NodeUnreachable, match="node n1: the way there broke"):
            connection.follow(["sh", "-c", "echo begun; exec sleep 1000"], take)
        assert seen == [b"begun\n"]
        assert connection.run(["echo", "again"]).stdout == b"again\n"

    def test_killed_in_the_middle_of_a_file(
        self, connection: StepConnection, tmp_path: Path
    ) -> None:
        target = tmp_path / "target"
        target.write_bytes(b"before")
        pid = connection.open()["pid"]
        source = tmp_path / "source"
        source.write_bytes(BIG)
        os.kill(pid, signal.SIGSTOP)
        outcome: list[BaseException] = []

        def put() -> None:
            try:
                connection.put_many([File(str(target), source), File(str(target), source)])
            except BaseException as error:
                outcome.append(error)

        putting = threading.Thread(target=put)
        putting.start()
        eventually(lambda: connection._channel._streams, what="the request")
        os.kill(pid, signal.SIGKILL)
        putting.join(90)
        assert isinstance(outcome[0], NodeUnreachable)
        assert target.read_bytes() == b"before"
        assert connection.run(["true"]).code == 0

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
    def test_what_ran_for_a_client_ends_with_it(
        self, connection: StepConnection, tmp_path: Path, number: int
    ) -> None:
        note = tmp_path / "pid"
        argv = ["sh", "-c", f"echo $$ > {note}; exec sleep 1000"]
        threading.Thread(target=lambda: _ignoring(connection, argv), daemon=True).start()
        running = int(eventually(lambda: note.exists() and note.read_text().strip()))
        started = connection.start(["sleep", "1000"], log=str(tmp_path / "log"), environment={})
        try:
            os.kill(connection.open()["pid"], number)
            eventually(lambda: not process_alive(running), what="the command is gone")
            assert process_alive(started)
        finally:
            os.kill(started, signal.SIGKILL)

    def test_what_is_carried_ends_by_itself_when_nobody_is_there(
        self, step: Step, tmp_path: Path
    ) -> None:
        # A step of a job stays behind if its srun is killed, rather than told that there is no more to do.
        script = f'"$@"; echo "ended well" > {tmp_path}/note'
        hub = step(prefix=())
        step(hub, ("sh", "-c", script, "sh")).open()
        os.kill(hub.open()["pid"], signal.SIGTERM)
        eventually(lambda: (tmp_path / "note").exists())

    def test_what_is_carried_and_does_not_end(self, step: Step, tmp_path: Path) -> None:
        hub = step(prefix=())
        script = f'"$@"; echo $$ > {tmp_path}/note; exec sleep 1000'
        other = step(hub, ("sh", "-c", script, "sh"))
        other.open()
        other.close()
        pool.close_idle()
        eventually((tmp_path / "note").exists)
        pid = int(_first(tmp_path / "note"))
        eventually(lambda: not process_alive(pid))

    def test_a_far_end_that_falls_silent(self, step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
        connection = step()
        pid = connection.open()["pid"]
        os.kill(pid, signal.SIGSTOP)
        # Not before: a busy machine takes its time to begin.
        with monkeypatch.context() as impatient:
            impatient.setattr(channel, "PING_SECONDS", 0.2)
            impatient.setattr(channel, "SILENT_SECONDS", 2.0)
            try:
                with pytest.raises(
                    NodeUnreachable, match="node n1: nothing was heard of it for 2 s"
                ):
                    connection.run(["true"])
            finally:
                processes.send(pid, signal.SIGKILL)
        assert connection.run(["true"]).code == 0

    def test_a_tcp_stream_that_breaks(self, connection: StepConnection) -> None:
        async def scenario() -> None:
            server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            reader, writer = await connection.open_tcp("127.0.0.1", port)
            os.kill(connection.open()["pid"], signal.SIGKILL)
            with pytest.raises(ConnectionResetError, match="node n1"):
                await reader.read(1)
            writer.close()
            server.close()

        asyncio.run(asyncio.wait_for(scenario(), 60))


def _first(path: Path) -> str:
    return str(eventually(lambda: path.read_text().strip()))


def _ignoring(connection: StepConnection, argv: list[str]) -> None:
    with pytest.raises(NodeUnreachable):
        connection.run(argv)


class TestNotBeginning:
    def test_no_such_command(self, step: Step) -> None:
        with pytest.raises(NodeUnreachable, match=r"node n1.*no-such-srun"):
            step(prefix=("no-such-srun",)).open()

    def test_no_python_there(self, step: Step) -> None:
        with pytest.raises(NodeUnreachable, match=r"node n1.*exit status 127.*no-such-python"):
            step(prefix=("env",), python="no-such-python").open()

    @pytest.mark.parametrize(
        ("said", "expected"),
        [
            ("srun: error: Unable to confirm allocation for job 7: Invalid job id specified", True),
            ("slurmstepd: error: *** STEP 7.1 ON n1 CANCELLED AT … DUE TO PREEMPTION ***", True),
            ("srun: error: Unable to create step for job 7: Requested nodes are busy", False),
            ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***", True),
            ("srun: error: Unable to contact slurm controller (connect failure)", False),
        ],
    )
    def test_a_job_that_is_gone_is_told_apart(
        self, step: Step, tmp_path: Path, said: str, expected: bool
    ) -> None:
        connection = step(prefix=counting(tmp_path, f"echo '{said}' >&2; exit 1"))
        with pytest.raises(NodeUnreachable) as caught:
            connection.run(["true"])
        assert isinstance(caught.value, JobGone) is expected
        assert said in str(caught.value)

    def test_who_asks_often_does_not_begin_often(self, step: Step, tmp_path: Path) -> None:
        connection = step(prefix=counting(tmp_path, "exit 1"))
        for _ in range(500):
            with pytest.raises(NodeUnreachable):
                connection.run(["true"])
        assert starts(tmp_path) < 100

    def test_one_that_does_not_begin_in_time(self, step: Step) -> None:
        connection = step(prefix=("sh", "-c", "exec sleep 1000", "sh"))
        with pytest.raises(NodeUnreachable, match=r"node n1.*did not begin"):
            connection.open(timeout=0.3)
        with pytest.raises(TimeoutError):
            connection.run(["true"], timeout=0.3)


class Way(LocalConnection):
    """A base that leads to addresses, or does not."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.asked: list[tuple[str, int]] = []
        self.key = id(self)

    async def open_tcp(
        self, address: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.asked.append((address, port))
        if self.error is not None:
            raise self.error
        return await super().open_tcp("127.0.0.1", port)


class TestPastTheStep:
    @pytest.fixture
    def port(self) -> int:
        return free_port()

    @pytest.mark.parametrize(
        ("error", "asked"),
        [(None, 2), (ConnectionRefusedError("no"), 2), (NodeUnreachable("forbidden"), 1)],
    )
    def test_a_way_that_does_not_lead_there_is_not_tried_again(
        self, step: Step, port: int, error: Exception | None, asked: int
    ) -> None:
        base = Way(error)
        connection = step(base, prefix=("env", f"WAY={base.key}"))

        async def scenario() -> None:
            server = await asyncio.start_server(_greet, "0.0.0.0", port)
            for _ in range(2):
                reader, writer = await connection.open_tcp("127.0.0.2", port)
                assert await reader.read() == b"hello"
                writer.close()
            server.close()

        # What is only a loopback address here stands for a node's own.
        with pytest.MonkeyPatch.context() as patch:
            name = "flowlite.connect.step.connection._leads_elsewhere"
            patch.setattr(name, lambda address: True)
            asyncio.run(asyncio.wait_for(scenario(), 60))
        assert len(base.asked) == asked

    def test_what_means_the_node_itself_goes_through_it(self, step: Step, port: int) -> None:
        base = Way(None)
        connection = step(base, prefix=("env", f"WAY={base.key}"))

        async def scenario() -> None:
            server = await asyncio.start_server(_greet, "127.0.0.1", port)
            reader, writer = await connection.open_tcp("127.0.0.1", port)
            assert await reader.read() == b"hello"
            writer.close()
            server.close()

        asyncio.run(asyncio.wait_for(scenario(), 60))
        assert base.asked == []


async def _greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"hello")
    writer.close()


def test_a_step_that_was_cancelled_may_be_all_that_was() -> None:
    said = "slurmstepd-n2: error: *** STEP 3.1 ON n2 CANCELLED AT 2026-01-01T00:00:00 ***"
    error = srun_lost("node n2")(143, said)
    assert type(error) is NodeUnreachable
    assert "cancelled" in str(error)


class Shown(LocalConnection):
    """A base that notes what it is to run on our terminal."""

    def stream(self, argv: Sequence[str], *, terminal: bool) -> int:
        self.seen = (list(argv), terminal)
        return 7


def test_a_terminal_has_a_command_of_its_own(step: Step, monkeypatch: pytest.MonkeyPatch) -> None:
    base = Shown()
    connection = step(base, ("srun",), terminal=["srun", "--pty"])
    monkeypatch.setenv("TERM", "vt100")
    assert connection.stream(["top"], terminal=True) == 7
    assert base.seen == (["srun", "--pty", "env", "TERM=vt100", "top"], True)
    monkeypatch.delenv("TERM")
    other = step(base, ("srun",))
    assert other.stream(["top"], terminal=True) == 7
    assert base.seen == (["srun", "top"], True)
