"""Workers as the agent sees them: each reported once, with the truth about its end and the final size of its files."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.config.agent_config import AttemptPaths
from flowlite.node.forkserver import client
from flowlite.node.forkserver import reaper as reaper_module
from flowlite.node.forkserver import worker_group as workers_module
from flowlite.node.forkserver.observed_imports import ObservedImports
from flowlite.node.forkserver.reaper import Reaper, _WorkerRecord
from flowlite.node.forkserver.worker_choice import WorkerChoice
from flowlite.node.forkserver.worker_group import Workers, WorkersLost
from flowlite.node.log_stream import output_tail
from flowlite.node.system import processes
from tests.helpers import KILLED, assert_no_process_left, eventually, kill_processes_of

TASK = f"t-workers-{os.getpid()}"
MARKS = {"FLOW_TASK_ID": TASK, "FLOW_NODE_RANK": "0", "FLOW_ATTEMPT": "1"}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    try:
        assert_no_process_left(TASK)
    finally:
        kill_processes_of(TASK)


class Node:
    """Workers of one node, and what was reported of them."""

    def __init__(
        self, directory: Path, *, grace: float = 0.5, stop_signal: int = signal.SIGTERM
    ) -> None:
        self.directory = directory
        self.reports: list[dict[str, Any]] = []
        self.times: list[float] = []
        spec = client.make_spec(
            task=TASK,
            socket=client.socket_path(f"{TASK}/{directory}"),
            python=sys.executable,
            log=str(directory / "warm.log"),
            function=False,
            idle=0.0,
        )
        self.workers = Workers(
            spec,
            AttemptPaths(directory),
            node=0,
            task=TASK,
            attempt=1,
            stop_signal=stop_signal,
            grace=grace,
            report=self._report,
        )

    def _report(self, body: dict[str, Any]) -> None:
        self.reports.append(body)
        self.times.append(time.monotonic())

    def order(self, rank: int, *argv: str, **changes: Any) -> dict[str, Any]:
        files = {
            each: str(self.directory / f"r{rank}.{each}")
            for each in ("out", "err", "result", "failure")
        }
        environment = {"PATH": os.environ["PATH"], **MARKS, "RANK": str(rank)}
        return {
            "rank": rank,
            "local_rank": rank,
            "node": 0,
            "name": "test",
            "environment": environment,
            "workdir": None,
            "argv": list(argv),
            **files,
            **changes,
        }

    def start(self, *scripts: str) -> None:
        self.workers.start(
            [self.order(rank, "sh", "-c", each) for rank, each in enumerate(scripts)]
        )

    async def up(self, *ranks: int) -> None:
        """Until these workers have written something."""
        async with asyncio.timeout(60):
            files = {str(rank): self.directory / f"r{rank}.out" for rank in ranks}
            while not all(output_tail.sizes(files).values()):
                await asyncio.sleep(0.005)

    def by_rank(self) -> dict[int, dict[str, Any]]:
        assert len(self.reports) == len({each["rank"] for each in self.reports}), self.reports
        return {each["rank"]: each for each in self.reports}


def run(node: Node, script: Callable[[Node], Awaitable[None]]) -> dict[int, dict[str, Any]]:
    """Connect, run a script of the test, wait for every worker; gives the reports by rank."""

    async def all_of_it() -> None:
        async with asyncio.timeout(90):
            await node.workers.connect()
            try:
                await script(node)
                await node.workers.wait()
            finally:
                await node.workers.close()

    asyncio.run(all_of_it())
    return node.by_rank()


def run_scripts(directory: Path, *scripts: str) -> dict[int, dict[str, Any]]:
    async def start(node: Node) -> None:
        node.start(*scripts)

    return run(Node(directory), start)


def test_every_way_to_end_is_told_apart(tmp_path: Path) -> None:
    found = run_scripts(
        tmp_path,
        "echo fine",
        "echo oops >&2; exit 42",
        "kill -9 $$",
        "kill -SEGV $$",
        "exit 137",
    )
    assert [(found[rank]["code"], found[rank]["signal"]) for rank in range(5)] == [
        (0, None),
        (42, None),
        (None, signal.SIGKILL),
        (None, signal.SIGSEGV),
        (137, None),
    ]
    assert found[0]["failure"] is None
    assert found[1]["failure"] == {"kind": "exit", "type": "", "message": "exited with 42"}
    assert found[1]["tail"] == ["oops"]
    assert found[1]["sizes"] == {"out": 0, "err": 5, "result": 0}
    assert re.fullmatch(f"was {KILLED}", found[2]["failure"]["message"])
    assert found[3]["failure"]["message"] == "was killed by SIGSEGV"
    assert "SIGKILL" in found[4]["failure"]["message"]
    assert all(not each["stopped"] for each in found.values())


def test_a_command_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a program")

    async def start(node: Node) -> None:
        node.workers.start(
            [
                node.order(0, "no-such-command"),
                node.order(1, str(tmp_path / "file")),
                node.order(2, "true", workdir="/no/such/directory"),
                node.order(3, f"{tmp_path}/moved"),
                node.order(4, f"{tmp_path}/windows"),
            ]
        )

    for name, text in (("moved", "#!/gone/env/bin/python\n"), ("windows", "#!/bin/sh\r\n:\r\n")):
        (tmp_path / name).write_bytes(text.encode())
        (tmp_path / name).chmod(0o755)
    found = run(Node(tmp_path), start)
    assert [found[rank]["code"] for rank in range(5)] == [127, 126, 127, 127, 127]
    messages = [found[rank]["failure"]["message"] for rank in range(5)]
    assert "'no-such-command'" in messages[0]
    assert "not on this node's PATH" in messages[0]
    assert "Permission denied" in messages[1]
    assert "working directory /no/such/directory" in messages[2]
    assert messages[3].endswith(
        "moved is there, and /gone/env/bin/python, which its first line names, is not"
    )
    assert messages[4].endswith(
        f"its lines end as on Windows (CR LF), which no shell reads: dos2unix {tmp_path}/windows"
    )
    assert {found[rank]["failure"]["kind"] for rank in range(5)} == {"load"}
    assert "no-such-command" in (tmp_path / "r0.err").read_text()


def test_where_no_process_can_be_forked_the_worker_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    order = Node(tmp_path).order(0, "true")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        state = {"socket": str(tmp_path / "socket"), "hosts": None}
        reaper = Reaper(theirs, state, WorkerChoice({}, None, ObservedImports()))
        monkeypatch.setattr(os, "fork", refuse)
        reaper._obey({"do": "start", "orders": [order]})
        told = json.loads(ours.recv(1 << 16))
    body = workers_module.describe_end(order, told)
    assert (told["event"], body["code"], body["failure"]["kind"]) == ("exited", 126, "load")
    assert os.strerror(errno.EAGAIN) in body["failure"]["message"]
    assert "pids.max" in body["failure"]["message"]
    assert signal.SIGCHLD not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.needs("ps")
def test_workers_have_sessions_of_their_own_and_read_nothing(tmp_path: Path) -> None:
    (report,) = run_scripts(tmp_path, "ps -o pid=,sid=,pgid= -p $$; cat").values()
    assert report["code"] == 0
    pid, session, group = (tmp_path / "r0.out").read_text().split()
    assert pid == session == group


def test_inherited_descriptors_and_signals_are_as_for_any_command(tmp_path: Path) -> None:
    script = (
        "import os, signal; print(sorted(os.listdir('/proc/self/fd'))[:4]);"
        "print([signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]);"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    )

    async def start(node: Node) -> None:
        node.workers.start([node.order(0, sys.executable, "-c", script)])

    run(Node(tmp_path), start)
    lines = (tmp_path / "r0.out").read_text().splitlines()
    # Standard streams, and the one that lists the directory.
    assert lines[0] == "['0', '1', '2', '3']"
    assert lines[1].count("SIG_DFL") == 3
    assert lines[2] == "set()"


class TestStop:
    def test_who_obeys_is_gone_at_once(self, tmp_path: Path) -> None:
        node = Node(tmp_path, grace=100)
        began = 0.0

        async def stop(node: Node) -> None:
            nonlocal began
            node.start(
                "echo up; exec sleep 60",
                "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.1; done",
            )
            await node.up(0, 1)
            began = time.monotonic()
            await node.workers.stop()

        found = run(node, stop)
        assert time.monotonic() - began < 60
        assert (found[0]["signal"], found[1]["code"]) == (signal.SIGTERM, 3)
        assert all(each["stopped"] and each["failure"] is None for each in found.values())
        assert (tmp_path / "r1.out").read_text() == "up\nbye\n"

    def test_who_has_no_process_group_of_its_own_yet_is_asked_too(self) -> None:
        """A worker creates it some time after its fork."""
        pid = os.fork()
        if pid == 0:
            while True:
                signal.pause()
        held = _WorkerRecord(pid, {"rank": 0, "local_rank": 0, "out": "", "err": ""})
        try:
            Reaper._stop_one(Reaper.__new__(Reaper), held, signal.SIGTERM, 60.0)
            _, status = eventually(lambda: (ended := os.waitpid(pid, os.WNOHANG))[0] and ended)
        except AssertionError:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM

    def test_who_does_not_is_killed_with_all_it_started(self, tmp_path: Path) -> None:
        node = Node(tmp_path, grace=0.4)
        stubborn = "trap '' TERM; while :; do sleep 1; done"
        took = 0.0

        async def stop(node: Node) -> None:
            nonlocal took
            node.start(f'(setsid sh -c "{stubborn}" &) ; sh -c "{stubborn}" & echo up; {stubborn}')
            await node.up(0)
            began = time.monotonic()
            await node.workers.stop()
            took = time.monotonic() - began
            # `stop` promises that nobody is left, so there is nothing to wait for here.
            assert len(processes.marked(MARKS)) == 0

        found = run(node, stop)
        assert found[0]["signal"] == signal.SIGKILL
        assert 0.3 < took < 60

    def test_the_signal_is_the_one_asked_for(self, tmp_path: Path) -> None:
        async def stop(node: Node) -> None:
            node.start("trap 'echo saved; exit 0' INT; echo up; while :; do sleep 0.1; done")
            await node.up(0)
            await node.workers.stop()

        # A background child of a non-interactive shell ignores SIGINT; it is ended as a leftover.
        found = run(Node(tmp_path, stop_signal=signal.SIGINT), stop)
        assert found[0]["code"] == 0
        assert (tmp_path / "r0.out").read_text() == "up\nsaved\n"

    def test_a_paused_worker_stops_too(self, tmp_path: Path) -> None:
        node = Node(tmp_path, grace=20)

        async def stop(node: Node) -> None:
            node.start("echo up; kill -STOP $$; true")
            await node.up(0)
            await node.workers.stop()

        assert run(node, stop)[0]["signal"] == signal.SIGTERM

    def test_stop_before_start_and_twice(self, tmp_path: Path) -> None:
        async def stop(node: Node) -> None:
            await node.workers.stop()
            await asyncio.gather(node.workers.stop(), node.workers.stop())

        assert run(Node(tmp_path), stop) == {}


def test_what_a_worker_leaves_behind_is_ended_before_it_is_reported(tmp_path: Path) -> None:
    late = "trap 'echo late; exit' TERM; echo child; while :; do sleep 0.1; done"
    script = f'sh -c "{late}" & while ! grep -q child {tmp_path}/r0.out; do :; done; exit 7'
    found = run_scripts(tmp_path, script, "true")
    assert found[0]["code"] == 7
    # What it wrote when it was ended counts.
    assert (tmp_path / "r0.out").read_text() == "child\nlate\n"
    assert found[0]["sizes"]["out"] == len("child\nlate\n")


@pytest.mark.parametrize(
    "start",
    [
        # It writes nothing, and is known by the variables that it was started with.
        "setsid sleep 60 >/dev/null 2>&1",
        # It has none of the variables, and is known by what it writes to.
        "env -i setsid sleep 60",
    ],
)
def test_what_an_ended_worker_has_left_is_found_beside_one_that_runs(
    tmp_path: Path, start: str
) -> None:
    async def leave(node: Node) -> None:
        node.start(f"{start} & echo $!; exit 0", "echo up; exec sleep 60")
        await node.up(0, 1)
        async with asyncio.timeout(60):
            while not node.reports:
                await asyncio.sleep(0.005)
        assert not processes.is_alive(int((tmp_path / "r0.out").read_text()))
        assert node.by_rank().keys() == {0}
        await node.workers.stop()

    run(Node(tmp_path), leave)


def test_a_worker_that_not_even_sigkill_ends_is_reported_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that waits for a file system that hangs. The kernel takes the signals, and nothing happens."""
    monkeypatch.setattr(reaper_module, "STUCK_SECONDS", 0.0)
    monkeypatch.setattr(processes, "send", lambda *_: True)
    monkeypatch.setattr(processes, "send_group", lambda *_: True)
    order = Node(tmp_path).order(3, "true")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        state = {"socket": str(tmp_path / "socket"), "hosts": None}
        reaper = Reaper(theirs, state, WorkerChoice({}, None, ObservedImports()))
        reaper._held[os.getpid()] = _WorkerRecord(os.getpid(), order)
        reaper._stop(signal.SIGTERM, 0.0)
        eventually(lambda: (reaper._look_after(), not reaper._held)[1], timeout=10)
        told = json.loads(ours.recv(1 << 16))
    body = workers_module.describe_end(order, {**told, "stopped": False})
    assert (told["event"], told["rank"], told["stuck"]) == ("exited", 3, True)
    assert "not even by SIGKILL" in body["failure"]["message"]


def test_one_worker_ending_leaves_the_others_children_alone(tmp_path: Path) -> None:
    async def start(node: Node) -> None:
        node.start("setsid sleep 60 & echo up; exit 0", "(setsid sleep 0.5; echo done) & wait")
        await node.workers.wait()

    found = run(Node(tmp_path), start)
    assert found[1]["code"] == 0
    assert (tmp_path / "r1.out").read_text() == "done\n"


def test_a_grace_period_of_months_leaves_a_worker_the_time_to_save(tmp_path: Path) -> None:
    async def stop(node: Node) -> None:
        node.start("trap 'echo saved; exit 0' TERM; echo up; while :; do sleep 0.02; done")
        await node.up(0)
        async with asyncio.timeout(60):
            await node.workers.stop()

    found = run(Node(tmp_path, grace=90 * 86400.0), stop)
    assert (found[0]["code"], found[0]["signal"]) == (0, None)
    assert (tmp_path / "r0.out").read_text() == "up\nsaved\n"


def test_a_killed_reaper_takes_its_workers_along_and_all_are_reported(tmp_path: Path) -> None:
    async def kill(node: Node) -> None:
        node.start("setsid sleep 60 & echo up; wait", "echo up; exec sleep 60", "echo up; exit 0")
        await node.up(0, 1)
        async with asyncio.timeout(60):
            while len(node.reports) < 1:
                await asyncio.sleep(0.005)
        os.kill(node.workers.warm["reaper"], signal.SIGKILL)
        await node.workers.wait()
        assert not processes.marked(MARKS)

    found = run(Node(tmp_path), kill)
    assert found[2]["code"] == 0
    for rank in (0, 1):
        assert found[rank]["signal"] == signal.SIGKILL
        assert "process that holds this node's workers" in found[rank]["failure"]["message"]


def test_a_reaper_that_hangs_does_not_keep_its_workers_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "KEEPER_SECONDS", 0.3)

    async def hang(node: Node) -> None:
        node.start("setsid sleep 60 & echo up; wait")
        await node.up(0)
        os.kill(node.workers.warm["reaper"], signal.SIGSTOP)
        await node.workers.stop()
        assert not processes.marked(MARKS)

    assert run(Node(tmp_path, grace=0.1), hang)[0]["stopped"]


def test_template_and_reaper_killed_together(tmp_path: Path) -> None:
    async def kill(node: Node) -> None:
        # One child is known by its variables only, the other one by what it writes to.
        node.start("setsid sleep 60 >/dev/null 2>&1 & env -i setsid sleep 60 & echo up; wait")
        await node.up(0)
        for each in ("fork_server", "reaper"):
            os.kill(node.workers.warm[each], signal.SIGKILL)
        await node.workers.wait()
        assert not processes.marked(MARKS)
        assert not processes.writers([str(tmp_path / "r0.out")])

    assert run(Node(tmp_path), kill)[0]["failure"]["kind"] == "signal"


def test_workers_ordered_after_the_reaper_died_are_reported(tmp_path: Path) -> None:
    async def kill(node: Node) -> None:
        os.kill(node.workers.warm["reaper"], signal.SIGKILL)
        await asyncio.sleep(0.1)
        node.start("true", "true")

    assert {each["signal"] for each in run(Node(tmp_path), kill).values()} == {signal.SIGKILL}


def test_what_is_asked_after_the_reaper_died_is_not_waited_for(tmp_path: Path) -> None:
    async def ask(node: Node) -> None:
        os.kill(node.workers.warm["reaper"], signal.SIGKILL)
        async with asyncio.timeout(30):
            assert node.workers._follower is not None
            await node.workers._follower
            for _ in range(2):
                with pytest.raises(WorkersLost, match="is gone") as lost:
                    await node.workers.probe([str(tmp_path)], "token", write=False)
        assert lost.value.passing

    run(Node(tmp_path), ask)


def test_a_stop_while_the_rest_of_a_killed_reaper_is_ended_waits_for_that_only(
    tmp_path: Path,
) -> None:
    began, over = threading.Event(), threading.Event()

    def sweep() -> None:
        began.set()
        assert over.wait(60)

    async def stop(node: Node) -> None:
        node.workers._sweep = sweep  # type: ignore[method-assign]
        node.start("echo up; exec sleep 60")
        await node.up(0)
        os.kill(node.workers.warm["reaper"], signal.SIGKILL)
        assert await asyncio.to_thread(began.wait, 60)
        stopping = asyncio.create_task(node.workers.stop())
        await asyncio.sleep(0)
        over.set()
        async with asyncio.timeout(20):
            await stopping

    assert run(Node(tmp_path), stop)[0]["signal"] == signal.SIGKILL


def test_an_import_that_crashes_the_warm_process_is_left_to_the_worker(tmp_path: Path) -> None:
    (tmp_path / "flowlite_test_crash.py").write_text("import os; os.abort()")
    node = Node(tmp_path)
    node.workers._spec["imports"] = ["flowlite_test_crash"]
    node.workers._spec["environment"] = {"PYTHONPATH": str(tmp_path)}

    async def start(node: Node) -> None:
        node.start("true")

    assert run(node, start)[0]["code"] == 0


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"", []),
        (b"one\ntwo", ["one", "two"]),
        (b"one\n\n \n", ["one"]),
        (b"10%\r50%\r100%\nend\r\n", ["100%", "end"]),
        (b"\xff\xfe\n", ["\ufffd\ufffd"]),
        (b"".join(b"%d\n" % each for each in range(100)), [str(each) for each in range(80, 100)]),
        (b"x" * 9000 + b"\nlast\n", ["last"]),
        (b"y" * 9000, [f"[… 4904 characters …] {'y' * 4096}"]),
        (b"y" * 9000 + b"\r10%", ["10%"]),
    ],
)
def test_last_words(tmp_path: Path, written: bytes, shown: list[str]) -> None:
    path = tmp_path / "stream"
    path.write_bytes(written)
    assert output_tail.tail(path) == shown


def test_of_a_crash_in_native_code_the_users_line_is_shown(tmp_path: Path) -> None:
    deep = "".join(f'  File "/home/me/train.py", line {line} in step\n' for line in range(7, 40))
    ours = "".join(f'  File "{client.__file__}", line {line} in main\n' for line in range(60))
    files = {"out": tmp_path / "out", "err": tmp_path / "err"}
    for frames, shown in (
        ('  File "/home/me/train.py", line 7 in step\n', 1),
        (deep, 7),
    ):
        files["err"].write_text(
            "step 1\nFatal Python error: Segmentation fault\n\nThread 0x01 (most recent call first):\n"
            '  File "/usr/lib/python3.11/threading.py", line 1 in wait\n\n'
            f"Current thread 0x02 (most recent call first):\n{frames}{ours}"
            '  File "/x/agents/1c59.pyz/__main__.py", line 8 in <module>\n  File "<frozen runpy>", line 88 in x\n\n'
            "Extension modules: numpy.core (total: 1)\n"
        )
        said = output_tail.last_words(files)
        assert said[:3] == [
            "Fatal Python error: Segmentation fault",
            "Current thread 0x02 (most recent call first):",
            '  File "/home/me/train.py", line 7 in step',
        ]
        # What is shown of them later is ten lines at most.
        assert len(said) == 2 + shown
        assert not any(client.__file__ in line or "runpy" in line for line in said)
    files["err"].write_text(
        "Fatal Python error: Aborted\n\nCurrent thread 0x02 (most recent call first):\n  <no Python frame>\n"
    )
    assert said != output_tail.last_words(files)
    assert output_tail.last_words(files)[0] == "Fatal Python error: Aborted"


def test_last_words_of_nothing(tmp_path: Path) -> None:
    files = {"out": tmp_path / "out", "err": tmp_path / "err"}
    assert output_tail.last_words(files) == []
    assert output_tail.sizes(files) == {"out": 0, "err": 0}
    files["out"].write_text("said\n")
    assert output_tail.last_words(files) == ["said"]
