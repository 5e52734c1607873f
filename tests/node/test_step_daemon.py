"""The step daemon of a node: what it starts is its child and ends with it; when it goes, and its last words."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.agent_zip import build_agent_zip
from flowlite.connect.local import LocalConnection
from flowlite.connect.step import StepConnection, pool
from flowlite.errors import NodeUnreachable
from flowlite.node.forkserver import registry
from flowlite.node.helper import daemon_client
from flowlite.node.host_lease import unused_files
from flowlite.node.preemption import notices as preemption
from flowlite.node.slurm_step import daemon as daemon_module
from flowlite.node.slurm_step.notices import notice_of
from flowlite.node.system import atomic_files, processes, runtime_dir
from tests.helpers import clean_by_age, deep_tree, eventually, process_alive, put_agent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Slurm's nodes run Linux")

NOW = 1_700_000_000.0
_WORDS = (sys.executable, "-I", "-S")
FOREVER = ("--lease", "1000", "--deadline", "0")


class StepDaemon:
    """One, started as by Slurm."""

    def __init__(
        self,
        program: Path,
        directory: Path,
        *arguments: str,
        scontrol: str = "exit 1",
        scancel: str = "exit 1",
    ) -> None:
        self.program = program
        self.home = str(directory / "nodes" / "7.01.00002")
        tools = directory / "bin"
        tools.mkdir(exist_ok=True)
        for name, does in (("scontrol", scontrol), ("scancel", scancel)):
            (tools / name).write_text(f"#!/bin/sh\n{does}\n")
            (tools / name).chmod(0o755)
        ours = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1", "SLURM_NODEID": "2"}
        self.process = subprocess.Popen(
            [*_WORDS, str(program), "step-daemon", "--dir", str(directory / "nodes"), *arguments],
            env={**os.environ, **ours, "PATH": f"{tools}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        # On a busy machine it may be over already: it removes its files when it ends.
        eventually(
            lambda: self.file("step-daemon.json").exists() or self.process.poll() is not None,
            what="the step daemon",
        )

    def file(self, name: str) -> Path:
        return Path(self.home, name)

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        return daemon_client.Line(self.home).ask({"do": do, **request})

    def start(self, script: str, log: Path) -> int:
        argv = ["sh", "-c", script]
        return int(self.ask("start", argv=argv, log=str(log), environment={"WORD": "w"})["pid"])

    def notice(self) -> dict[str, Any]:
        text = eventually(
            lambda: self.file("notice.json").exists() and self.file("notice.json").read_text(),
            timeout=90,
        )
        found = json.loads(text)
        assert isinstance(found, dict)
        return found

    def end(self) -> tuple[int, str]:
        """Its exit status, and what it said."""
        _, said = self.process.communicate(timeout=90)
        return self.process.returncode, said.decode()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As it lies on a node: under its hash."""
    put_agent(home := tmp_path_factory.mktemp("home"))
    built = build_agent_zip(home)
    path = tmp_path_factory.mktemp("blobs") / built.sha256
    path.write_bytes(built.path.read_bytes())
    return path


@pytest.fixture
def daemon(program: Path, tmp_path: Path) -> Iterator[Callable[..., StepDaemon]]:
    made: list[StepDaemon] = []

    def make(*arguments: str, **options: Any) -> StepDaemon:
        made.append(StepDaemon(program, tmp_path, *(arguments or FOREVER), **options))
        return made[-1]

    yield make
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        each.process.stderr.close()  # type: ignore[union-attr]


def before_its_lease_ends(
    daemon: Callable[..., StepDaemon], doing: Callable[[StepDaemon, int], None]
) -> tuple[StepDaemon, int]:
    """A step daemon with which something was done, and its lease in seconds: the shortest that sufficed.

    On a busy machine, a short lease may end before anything was asked.
    """
    for lease in (1, 3, 8, 60):
        held = daemon("--lease", str(lease), "--deadline", "0")
        with suppress(OSError):
            doing(held, lease)
            return held, lease
        held.end()
        held.file("step-daemon.json").unlink(missing_ok=True)
    raise AssertionError("a lease of 60 s ended before anything was done")


class TestFacts:
    def test_what_it_says_of_itself(self, daemon: Callable[..., StepDaemon]) -> None:
        held = daemon()
        facts = json.loads(held.file("step-daemon.json").read_bytes())
        assert facts == held.ask("hello")
        assert facts["instance"] == "7.01.00002"
        assert (facts["job"], facts["restart"], facts["nodeid"]) == (7, 1, 2)
        assert facts["pid"] == held.process.pid == int(held.file("step-daemon.pid").read_text())
        assert facts["start"] == processes.start_of(held.process.pid)
        assert facts["shared"] is False
        assert Path(held.home).stat().st_mode & 0o777 == 0o700

    @pytest.mark.parametrize(("text", "expected"), [("n1", True), ("n2", False), (None, False)])
    def test_a_directory_is_shared_if_it_shows_what_was_written_elsewhere(
        self, daemon: Callable[..., StepDaemon], tmp_path: Path, text: str | None, expected: bool
    ) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        if text is not None:
            (shared / "probe-n1").write_text(text)
        held = daemon(*FOREVER, "--shared", str(shared), "--nonce", "n1")
        assert held.ask("hello")["shared"] is expected
        said = shared / "step-daemons" / "7.01.00002.json"
        eventually(lambda: said.exists() is expected)

    def test_what_cleans_tmp_leaves_its_files_alone(
        self, daemon: Callable[..., StepDaemon], tmp_path: Path
    ) -> None:
        tmp_path.chmod(0o1777)
        held = daemon(*FOREVER)
        place = Path(held.home).parent
        (place / "envs").mkdir()
        (place / "envs" / "module.py").touch()
        clean_by_age(tmp_path)
        assert held.file("step-daemon.json").exists()
        assert (place / "envs" / "module.py").exists()
        assert held.ask("end") == {}
        held.end()
        clean_by_age(tmp_path)
        assert not (place / "envs").exists()

    def test_what_it_does_not_understand_does_no_harm(
        self, daemon: Callable[..., StepDaemon]
    ) -> None:
        held = daemon()
        assert held.ask("dance")["errno"]
        assert held.ask("start", argv=[])["errno"]
        absent = held.ask("start", argv=["no-such"], log=f"{held.home}/log", environment={})
        assert absent["errno"] == 2
        assert held.ask("hello")["job"] == 7

    def test_instances_are_sorted_as_the_nodes_of_the_job(self) -> None:
        names = [
            daemon_client.instance_id(7, restart, node) for restart in (0, 1) for node in range(3)
        ]
        assert names == sorted(names)
        assert daemon_client.home_of("/n/", names[4]) == "/n/7.01.00001"


class TestChildren:
    def test_what_is_started_through_a_step_is_its_child(
        self, daemon: Callable[..., StepDaemon], tmp_path: Path
    ) -> None:
        held = daemon()
        with StepConnection(
            LocalConnection(),
            ("env",),
            label="node n1",
            python=sys.executable,
            program=str(held.program),
            daemon=held.home,
        ) as connection:
            assert connection.open()["daemon"]["pid"] == held.process.pid
            log = tmp_path / "log"
            pid = connection.start(
                ["sh", "-c", 'echo "$WORD $$"; exec sleep 1000'],
                log=str(log),
                environment={"WORD": "it's"},
            )
            eventually(lambda: log.read_text() == f"it's {pid}\n")
            found = processes.row(pid)
            assert found is not None
            assert (found.parent, found.session) == (held.process.pid, pid)
            with pytest.raises(FileNotFoundError):
                connection.start(["no-such"], log=str(log), environment={})
            held.process.kill()
            # Whatever is asked of a step daemon that is gone: the node is.
            held.process.wait()
            with pytest.raises(NodeUnreachable, match="step daemon"):
                connection.start(["true"], log=str(log), environment={})
            # It is asked to end when the step daemon is gone.
            eventually(lambda: not process_alive(pid))
        pool.close_idle()

    def test_an_agent_is_forked(self, daemon: Callable[..., StepDaemon], tmp_path: Path) -> None:
        held = daemon()
        directory = tmp_path / "a1"
        directory.mkdir()
        os.mkfifo(directory / "agent.json")
        argv = [sys.executable, "-I", "-S", str(held.program), "agent", str(directory)]
        log = str(directory / "agent.log")
        pid = held.ask("start", argv=argv, log=log, environment={"FLOW_TASK_ID": "t1"})["pid"]
        eventually(lambda: (directory / "agent.pid").exists())
        assert processes.row(pid).parent == held.process.pid  # type: ignore[union-attr]
        assert processes.environment_of(pid) == {"FLOW_TASK_ID": "t1"}
        assert _ignores(pid, signal.SIGUSR2)
        held.process.kill()
        eventually(lambda: not process_alive(pid))

    def test_what_its_children_leave_ends_with_it(
        self, daemon: Callable[..., StepDaemon], tmp_path: Path
    ) -> None:
        held = daemon(*FOREVER, "--grace", "1")
        note = tmp_path / "pid"
        script = f"trap '' TERM; setsid sh -c 'echo $$ > {note}; exec sleep 1000' & exit"
        held.start(script, tmp_path / "log")
        left = int(eventually(lambda: note.exists() and note.read_text().strip()))
        eventually(lambda: processes.row(left).parent == held.process.pid)  # type: ignore[union-attr]
        assert held.ask("end") == {}
        code, said = held.end()
        assert (code, "it was told to" in said) == (0, True)
        assert not process_alive(left)

    def test_its_files_go_however_deep_they_are(self, daemon: Callable[..., StepDaemon]) -> None:
        held = daemon(*FOREVER)
        deep_tree(Path(held.home))
        assert held.ask("end") == {}
        code, said = held.end()
        assert (code, "it was told to" in said) == (0, True)
        assert not Path(held.home).exists()


class TestKept:
    """Between two tasks."""

    @pytest.fixture
    def fork_server(self) -> Iterator[Callable[[int], None]]:
        """Makes a process one of the fork servers that are kept."""
        path = str(Path(runtime_dir.find(), f"{registry.PREFIX}{os.urandom(9).hex()}0"))
        assert len(Path(path).name) == registry.NAME_LENGTH

        def make(pid: int) -> None:
            told = {**processes.identity(pid), "agents": 0, "until": None, "used": 0.0}
            Path(f"{path}.state").write_text(json.dumps(told))

        # Without a listener, a lease that ends on this machine meanwhile would remove the files of a dead fork server.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            yield make
        registry.forget(path)

    def test_the_task_ends_and_its_fork_servers_stay(
        self,
        daemon: Callable[..., StepDaemon],
        tmp_path: Path,
        fork_server: Callable[[int], None],
    ) -> None:
        held = daemon()
        note = tmp_path / "pid"
        own = {"step-daemon.json", "step-daemon.pid"}
        agent = held.start(f"sleep 1001 & echo $! > {note}; wait", tmp_path / "log")
        server = held.start("exec sleep 1002", tmp_path / "log")
        fork_server(server)
        worker = int(eventually(lambda: note.exists() and note.read_text().strip()))
        held.file("python").write_text(sys.executable)
        held.file("a1").mkdir()
        held.file("a1/r0.out").write_text("output")
        assert held.ask("keep", seconds=600) == {}
        assert not process_alive(agent)
        assert not process_alive(worker)
        assert process_alive(server)
        assert {each.name for each in Path(held.home).iterdir()} == {*own, "python"}
        # The next task takes the node over, and may say so twice.
        for _ in range(2):
            assert held.ask("take") == {}
        assert process_alive(held.start("exec sleep 1003", tmp_path / "log"))
        held.ask("end")
        assert held.end()[0] == 0
        assert not process_alive(server)

    def test_it_ends_by_itself_if_no_task_comes(
        self, daemon: Callable[..., StepDaemon], tmp_path: Path, fork_server: Callable[[int], None]
    ) -> None:
        held = daemon()
        server = held.start("exec sleep 1001", tmp_path / "log")
        fork_server(server)
        assert held.ask("keep", seconds=1) == {}
        with suppress(OSError):
            # Whatever is asked, it is not kept for longer.
            assert "no task has taken it over" in held.ask("take")["text"]
        code, said = held.end()
        assert (code, "kept for 1 s, and no task has taken it over" in said) == (0, True)
        assert not process_alive(server)
        assert not Path(held.home).exists()

    def test_a_node_that_was_taken_over_has_its_lease_again(
        self, daemon: Callable[..., StepDaemon], tmp_path: Path, fork_server: Callable[[int], None]
    ) -> None:
        def hand_over(held: StepDaemon, lease: int) -> None:
            # A fork server without a task is nobody.
            fork_server(held.start("exec sleep 1001", tmp_path / "log"))
            assert held.ask("keep", seconds=600) == {}
            assert held.ask("take") == {}

        held, lease = before_its_lease_ends(daemon, hand_over)
        assert f"nobody was there for {lease} s" in held.end()[1]

    def test_it_is_not_kept_if_slurm_ends_the_job(self, daemon: Callable[..., StepDaemon]) -> None:
        held = daemon(scontrol="echo JobId=7 JobState=RUNNING PreemptTime=2030-01-01T00:00:00")
        held.process.send_signal(signal.SIGUSR2)
        held.notice()
        assert "Slurm ends its job" in held.ask("keep", seconds=600)["text"]
        assert "Slurm ends its job" in held.ask("take")["text"]


class TestTheEnd:
    def test_nobody_is_there(self, daemon: Callable[..., StepDaemon], tmp_path: Path) -> None:
        def begin(held: StepDaemon, lease: int) -> None:
            # As long as something runs, somebody is there.
            held.start(f"sleep {lease + 2}; echo done > {tmp_path}/done", tmp_path / "log")

        held, lease = before_its_lease_ends(daemon, begin)
        code, said = held.end()
        assert (code, f"nobody was there for {lease} s" in said) == (0, True)
        assert (tmp_path / "done").exists()

    @pytest.mark.parametrize("cancels", [True, False])
    def test_a_job_that_may_have_lost_its_script_is_cancelled_when_nobody_is_there(
        self, daemon: Callable[..., StepDaemon], tmp_path: Path, cancels: bool
    ) -> None:
        note = tmp_path / "cancelled"
        asked = ("--cancel", "yes") if cancels else ()
        held = daemon("--lease", "1", "--deadline", "0", *asked, scancel=f'echo "$@" > {note}')
        assert held.end()[0] == 0
        assert note.exists() == cancels
        assert not cancels or note.read_text() == "7\n"

    def test_the_end_that_it_is_told_cancels_no_job(
        self, daemon: Callable[..., StepDaemon], tmp_path: Path
    ) -> None:
        held = daemon(*FOREVER, "--cancel", "yes", scancel=f"touch {tmp_path}/cancelled")
        held.ask("end")
        assert held.end()[0] == 0
        assert not (tmp_path / "cancelled").exists()

    def test_the_deadline(self, daemon: Callable[..., StepDaemon], tmp_path: Path) -> None:
        script = f"trap 'echo asked > {tmp_path}/asked; exit' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done"
        for deadline in (2, 16, 80):
            held = daemon("--lease", "1000", "--deadline", str(deadline))
            with suppress(OSError):
                held.start(script, tmp_path / "log")
            code, said = held.end()
            assert (code, "deadline" in said) == (0, True)
            if (tmp_path / "up").exists():
                break
            # A busy machine was late with this.
            held.file("step-daemon.json").unlink(missing_ok=True)
        assert (tmp_path / "asked").exists()

    @pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
    def test_sigterm_is_a_notice_and_the_end(
        self, daemon: Callable[..., StepDaemon], tmp_path: Path, state: str
    ) -> None:
        held = daemon(scontrol=f"echo JobId=7 JobState={state} PreemptTime=2030-01-01T00:00:00")
        waits = (
            f"trap 'until [ -s {held.home}/notice.json ]; do sleep 0.1; done; "
            f"cp {held.home}/notice.json {tmp_path}/seen; exit' TERM; echo up; while :; do sleep 0.1; done"
        )
        log = tmp_path / "log"
        held.start(waits, log)
        eventually(lambda: log.read_text() == "up\n")
        held.process.terminate()
        if state == "RUNNING":
            # There is grace: a step that ended well now would be the end of the job.
            eventually(lambda: Path(held.home, "notice.json").exists())
            assert held.process.poll() is None
            held.process.terminate()
        assert held.end()[0] == 0
        assert json.loads((tmp_path / "seen").read_text())["reason"] == "preempted by Slurm"

    @pytest.mark.parametrize(
        ("scontrol", "kind", "least", "most"),
        [
            ("echo JobId=7 TimeLimit=00:05:00 EndTime=2120-01-01T00:00:00", "deadline", 1e6, 1e11),
            ("exit 1", "deadline", 90.0, 90.0),
            ("sleep 1000", "deadline", 90.0, 90.0),
        ],
    )
    def test_sigusr2_is_a_notice(
        self,
        daemon: Callable[..., StepDaemon],
        scontrol: str,
        kind: str,
        least: float,
        most: float,
    ) -> None:
        held = daemon(*FOREVER, "--signal-seconds", "90", scontrol=scontrol)
        held.process.send_signal(signal.SIGUSR2)
        notice = held.notice()
        assert notice["kind"] == kind
        assert least <= notice["seconds"] <= most
        assert held.process.poll() is None
        eventually(lambda: not processes.descendants([held.process.pid]))


def _mask(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1], 16)


def _ignores(pid: int, number: int) -> bool:
    return bool(_mask(pid, "SigIgn") >> (number - 1) & 1)


class TestWhatASignalMeans:
    @staticmethod
    def at(seconds: float) -> str:
        from datetime import datetime

        return datetime.fromtimestamp(NOW + seconds).isoformat(timespec="seconds")

    def test_the_time_limit_is_near(self) -> None:
        job = f"JobId=7 JobState=RUNNING TimeLimit=01:00:00 PreemptTime=None EndTime={self.at(120)}"
        found = notice_of(job, signal.SIGUSR2, NOW)
        assert (found["kind"], found["seconds"]) == ("deadline", 120.0)
        assert "01:00:00" in found["reason"]

    @pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
    def test_preempted_with_some_grace(self, number: int) -> None:
        job = f"JobId=7 JobState=RUNNING PreemptTime={self.at(-1)} EndTime={self.at(10)}"
        found = notice_of(job, number, NOW)
        assert (found["kind"], found["seconds"]) == ("preempted", 10.0)

    def test_ended_by_somebody(self) -> None:
        job = f"JobId=7 JobState=RUNNING PreemptTime=None EndTime={self.at(5000)}"
        found = notice_of(job, signal.SIGTERM, NOW)
        assert (found["kind"], found["seconds"]) == ("preempted", 30.0)

    @pytest.mark.parametrize(
        "job", ["", "slurm_load_jobs error: Invalid job id", "EndTime=Unknown"]
    )
    def test_nothing_is_known(self, job: str) -> None:
        found = notice_of(job, signal.SIGUSR2, NOW)
        assert (found["kind"], found["known"]) == ("deadline", False)


class TestWhatAgentsMakeOfIt:
    @staticmethod
    def told(file: Path) -> preemption.Notice:
        how = {"kind": "slurm", "file": str(file), "every": 0.01}

        async def watch() -> preemption.Notice | None:
            async with asyncio.timeout(60):
                return await preemption.watch(how, lambda text: None, asyncio.Event())

        found = asyncio.run(watch())
        assert found is not None
        return found

    @pytest.mark.parametrize("kind", ["preempted", "deadline"])
    def test_time_has_passed_since(self, tmp_path: Path, kind: str) -> None:
        file = tmp_path / "notice.json"
        at = time.monotonic() - 100.0
        file.write_text(json.dumps({"kind": kind, "reason": "why", "seconds": 400.0, "at": at}))
        found = self.told(file)
        assert (found.reason, found.kind) == ("why", kind)
        assert 0.0 < found.seconds <= 300.0

    def test_what_is_late_leaves_no_time(self, tmp_path: Path) -> None:
        file = tmp_path / "notice.json"
        file.write_text(json.dumps({"kind": "x", "reason": "why", "seconds": 1.0, "at": -1e9}))
        assert self.told(file) == preemption.Notice("why", 0.0, "preempted")

    def test_it_comes_later(self, tmp_path: Path) -> None:
        file = tmp_path / "notice.json"
        file.write_text("{")
        writing = threading.Timer(
            0.2,
            lambda: atomic_files.place(
                json.dumps({"kind": "preempted", "reason": "r", "seconds": 0, "at": 0}).encode(),
                str(file),
                0o600,
            ),
        )
        writing.start()
        assert self.told(file).reason == "r"


class TestWhatKilledJobsHaveLeft:
    """Also results that a job has kept: `flow result` brings them for 14 days."""

    def _left(self, directory: Path, *jobs: int) -> list[Path]:
        homes = [directory / f"{job}.00.00000" for job in jobs]
        for home in homes:
            (home / "a1").mkdir(parents=True)
            (home / "a1" / "r0.result").write_text("x")
        return homes

    def test_is_cleared_away_some_day(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, live, elsewhere, own = self._left(tmp_path, 1, 2, 3, 4)
        (tmp_path / "blobs").mkdir()
        here = {**processes.identity(os.getpid()), "host": os.uname().nodename}
        (live / "step-daemon.json").write_text(json.dumps(here))
        (elsewhere / "step-daemon.json").write_text(json.dumps({**here, "host": "x", "pid": 1}))
        gone = subprocess.Popen(["true"])
        dead = {**processes.identity(gone.pid), "host": os.uname().nodename}
        gone.wait()
        (old / "step-daemon.json").write_text(json.dumps(dead))
        at = 1000.0
        monkeypatch.setattr(unused_files, "since_boot", lambda: at)
        daemon_module.forget_unused(str(tmp_path), str(own))
        at += 13 * 86400
        daemon_module.forget_unused(str(tmp_path), str(own))
        assert old.exists()
        at += 2 * 86400
        (young,) = self._left(tmp_path, 5)
        daemon_module.forget_unused(str(tmp_path), str(own))
        left = (old, live, elsewhere, own, young, tmp_path / "blobs")
        assert [each.exists() for each in left] == [False, True, True, True, True, True]

    @pytest.mark.parametrize("days", [-400, 400, 20_000])
    def test_stays_when_the_wall_clock_jumps(self, tmp_path: Path, days: int) -> None:
        (kept,) = self._left(tmp_path, 1)
        made = time.time() - days * 86400
        for path in (kept / "a1" / "r0.result", kept / "a1", kept):
            os.utime(path, (made, made))
        for _ in range(3):
            daemon_module.forget_unused(str(tmp_path), str(tmp_path / "2.00.00000"))
        assert (kept / "a1" / "r0.result").exists()

    def test_is_looked_at_by_the_next_daemon(
        self, daemon: Callable[..., StepDaemon], tmp_path: Path
    ) -> None:
        (kept,) = self._left(tmp_path / "nodes", 1)
        os.utime(kept, (0, 0))
        daemon()
        note = tmp_path / "nodes" / f"unused-{os.uname().nodename}.json"
        assert "1.00.00000" in json.loads(note.read_text())["seen"]
        assert (kept / "a1" / "r0.result").exists()
