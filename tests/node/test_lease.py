"""The lease of a host: one holder at a time, gone with its holder, and nothing left of the task after it."""

from __future__ import annotations

import fcntl
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

from flowlite.node.host_lease import cleanup, client, requests, unused_files
from flowlite.node.system import processes, runtime_dir
from provider_adapters.ssh import host_answers, leases
from tests.helpers import clean_by_age, deep_tree, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hosts are leased on Linux")

ROOT = Path(__file__).resolve().parent.parent.parent
_RUN = "import sys; from flowlite.node.__main__ import main; sys.exit(main(sys.argv[1:]))"


NOBODY = 65534
BECOME = (
    "import json, os, sys; from flowlite.node.host_lease import requests as asking; "
    f"os.setgid({NOBODY}); os.setuid({NOBODY})"
)
as_root = pytest.mark.needs("root")


def by_another_user(code: str, *, check: bool = True) -> str:
    """What a program prints that an unprivileged user runs."""
    done = subprocess.run(
        [sys.executable, "-c", f"{BECOME}; {code}"],
        capture_output=True,
        text=True,
        timeout=90,
        check=check,
        cwd=ROOT,
    )
    return done.stdout.strip()


class Host:
    """A host of its own on this machine: a lease name and a directory."""

    def __init__(self, root: Path, name: str) -> None:
        self.root = root
        self.name = name

    def request(self, task: str = "t1", **changes: Any) -> dict[str, Any]:
        instance = changes.get("instance", f"{task}-000-here")
        return {
            "token": f"{task}-launch-1",
            "task": task,
            "client": "this-home",
            "label": "laptop",
            "instance": instance,
            "root": str(self.root),
            "home": str(self.root / "tasks" / instance),
            "ttl": 60.0,
            "data": {"python": sys.executable},
            **changes,
        }

    def call(self, what: str, **request: Any) -> dict[str, Any]:
        """As the provider does: in a process of its own, which ends."""
        done = subprocess.run(
            [sys.executable, "-c", _RUN, "lease", what, self.name],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def take(self, task: str = "t1", **changes: Any) -> dict[str, Any]:
        return self.call("take", **self.request(task, **changes))

    def held(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = client.show(self.name)["held"]
        return found

    def release(self, task: str = "t1", **more: Any) -> dict[str, Any]:
        home = str(self.root / "tasks" / f"{task}-000-here")
        return self.call(
            "release", task=task, client="this-home", root=str(self.root), home=home, **more
        )

    def keep(self, **request: Any) -> dict[str, Any]:
        """Keeps the host of `t1`. Directly: the subcommand looks for what is to be spared by itself."""
        answer = requests.ask({"do": "keep", "token": "t1-launch-1", **request}, self.name)
        assert answer is not None
        return answer

    def start(self, marker: str, *argv: str) -> subprocess.Popen[bytes]:
        """A process that belongs to a lease."""
        environment = {**os.environ, requests.MARKER: marker}
        return subprocess.Popen(argv or ("sleep", "600"), env=environment, start_new_session=True)

    def holders(self) -> list[int]:
        """The holder, and its guard: those that have the log of this root as their output."""
        logs = [str(path) for path in self.root.glob("holder-*.log")]
        return sorted(processes.writers(logs))


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path / "root", f"flowlite-test-{os.getpid()}-{os.urandom(4).hex()}")
    yield made
    for pid in made.holders()[::-1]:
        # It ends by itself soon after its lease.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def sleeper(host: Host) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(marker: str, *argv: str) -> subprocess.Popen[bytes]:
        started.append(host.start(marker, *argv))
        eventually(
            lambda: processes.environment_of(started[-1].pid).get(requests.MARKER) == marker,
            what="the process to have its environment",
        )
        return started[-1]

    yield start
    for child in started:
        child.kill()
        child.wait()


class TestTaking:
    def test_a_lease_outlives_whoever_took_it(self, host: Host) -> None:
        taken = host.take()
        assert taken["ok"]
        held = host.held()
        assert held is not None
        assert (held["task"], held["state"]) == ("t1", "leased")
        assert held["lease"] == taken["lease"]["lease"]

    def test_the_same_token_gets_the_same_lease(self, host: Host) -> None:
        first, second = host.take(), host.take()
        assert first["lease"]["lease"] == second["lease"]["lease"]

    def test_another_task_is_told_who_holds_it(self, host: Host) -> None:
        host.take("t1")
        refused = host.take("t2")
        assert not refused["ok"]
        assert refused["held"]["task"] == "t1"
        assert refused["held"]["user"]
        assert refused["held"]["seconds"] < 60

    def test_of_many_at_once_one_gets_it(self, host: Host) -> None:
        answers: dict[str, dict[str, Any]] = {}

        def take(task: str) -> None:
            answers[task] = host.take(task)

        threads = [threading.Thread(target=take, args=(f"t{i}",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [task for task, answer in answers.items() if answer["ok"]]
        assert len(winners) == 1
        held = host.held()
        assert held is not None
        assert held["task"] == winners[0]

    def test_a_holder_that_hangs_holds_all_the_same(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host.take()
        for pid in host.holders():
            os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(requests, "ANSWER_SECONDS", 0.2)
        answer = client.take(host.request("t2"), host.name)
        assert not answer["ok"]
        assert answer["held"]["state"] == "silent"
        assert answer["held"]["uid"] == os.getuid()

    @pytest.mark.parametrize(
        "said",
        [b"", b"\n", b"nonsense\n", b"[]\n", b'{"do": 3}\n', b"[" * 100000 + b"\n", b"\xff\n"],
    )
    def test_nonsense_does_not_end_it(self, host: Host, said: bytes) -> None:
        host.take()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(requests.address(host.name))
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(65536)
        assert host.held() is not None

    @as_root
    def test_another_user_learns_who_from_the_kernel_and_nothing_from_the_holder(
        self, host: Host
    ) -> None:
        host.take("t1", data={"secret": "x"})
        said = [
            {"do": "show"},
            {"do": "release", "token": "t1-launch-1"},
            {"do": "keep", "token": "t1-launch-1", "seconds": 1},
            {**host.request("t1"), "do": "take"},
        ]
        for request in said:
            asked = f"print(json.dumps(asking.ask({request!r}, {host.name!r})))"
            answer = json.loads(by_another_user(asked))
            assert answer["held"] == {"state": "foreign", "uid": os.getuid(), "user": "root"}
            assert not answer["ok"]
            told = by_another_user(
                f"import socket; line = socket.socket(socket.AF_UNIX); line.connect(asking.address({host.name!r})); "
                f"line.sendall({(json.dumps(request) + chr(10)).encode()!r}); "
                "print(line.recv(65536))",
                check=False,
            )
            assert told in ("b''", "")
        held = host.held()
        assert held is not None
        assert held["state"] == "leased"

    def test_one_that_cannot_be_held_says_why(self, host: Host) -> None:
        """The limit of processes is reached when the guard is forked."""
        code = (
            "import errno, json, os; from flowlite.node.host_lease import client, lease_holder\n"
            "def lack(*_): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\n"
            "lease_holder._start_guard = lack\n"
            f"print(json.dumps(client.take({host.request()!r}, {host.name!r})))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, timeout=90, check=True, cwd=ROOT
        )
        answer = json.loads(done.stdout)
        assert answer["error"] == "a lease cannot be held there: Resource temporarily unavailable"
        assert leases.refused("gpu1", host_answers.of_lease(answer)) == f"gpu1: {answer['error']}"
        eventually(lambda: host.take()["ok"], what="its name to be free")

    def test_what_cleans_tmp_leaves_its_files_alone(self, host: Host, tmp_path: Path) -> None:
        tmp_path.chmod(0o1777)
        host.take()
        (host.root / "envs").mkdir()
        clean_by_age(tmp_path)
        assert (host.root / "envs").exists()
        assert host.release()["ok"]

        def cleaned() -> bool:
            clean_by_age(tmp_path)
            return not (host.root / "envs").exists()

        eventually(cleaned)

    def test_directories_are_made_for_volumes(self, host: Host, tmp_path: Path) -> None:
        assert host.take(make=[str(tmp_path / "shared" / "data")])["problem"] == ""
        assert (tmp_path / "shared" / "data").is_dir()

    def test_a_directory_that_cannot_be_made_is_named(self, host: Host, tmp_path: Path) -> None:
        (tmp_path / "shared").write_text("a file")
        path = str(tmp_path / "shared" / "data")
        assert path in host.take(make=[path])["problem"]


@as_root
class TestNameOfAnotherUser:
    """A process of another user has the name, and says yes to everything."""

    @pytest.fixture(params=["answers", "does not listen"])
    def taken(self, host: Host, request: pytest.FixtureRequest) -> Iterator[Host]:
        lease_of_theirs = {"home": "/home/theirs", "lease": "1", "marker": "m/1", "data": {}}
        answer = {"ok": True, "gone": True, "lease": lease_of_theirs, "held": None}
        listen = "taken.listen()\n" if request.param == "answers" else ""
        code = (
            f"{BECOME}\nimport socket\ntaken = socket.socket(socket.AF_UNIX)\n"
            f"taken.bind(asking.address({host.name!r}))\n{listen}print('ready', flush=True)\n"
            f"while {bool(listen)}:\n    line = taken.accept()[0]\n"
            f"    try: line.sendall({(json.dumps(answer) + chr(10)).encode()!r})\n"
            "    except OSError: pass\n    line.close()\n"
            "sys.stdin.read()\n"
        )
        argv = [sys.executable, "-c", code]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(argv, cwd=ROOT, **pipes) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            yield host
            child.kill()

    def test_it_is_named_whatever_is_asked(self, taken: Host) -> None:
        held = {"state": "foreign", "uid": NOBODY, "user": "nobody"}
        assert taken.held() == held
        assert taken.take() == {"ok": False, "other": True, "held": held}
        kept = taken.call("keep", task="t1", client="this-home", seconds=60)
        assert kept == {"ok": False, "other": True, "held": held}
        assert taken.held() == held

    def test_a_release_removes_what_is_ours_all_the_same(self, taken: Host) -> None:
        home = taken.root / "tasks" / "t1-000-here"
        home.mkdir(parents=True)
        assert taken.release() == {"ok": True, "gone": True}
        assert not home.exists()


class TestReleasing:
    def test_nothing_is_left(
        self, host: Host, sleeper: Callable[..., subprocess.Popen[bytes]]
    ) -> None:
        marker = host.take()["lease"]["marker"]
        home = host.root / "tasks" / "t1-000-here"
        (home / "a1").mkdir(parents=True)
        (home / "a1" / "r0.out").write_text("hello")
        child = sleeper(marker, "sh", "-c", "sleep 600 & sleep 600")
        assert host.release() == {"ok": True, "gone": True}
        # A shell whose last command is killed first ends with its signal.
        assert child.wait(timeout=90) in (-signal.SIGKILL, 128 + signal.SIGKILL)
        assert not home.exists()
        assert cleanup.members(marker) == set()
        assert host.held() is None

    def test_what_a_worker_started_without_its_environment_goes_too(
        self, host: Host, sleeper: Callable[..., subprocess.Popen[bytes]]
    ) -> None:
        marker = host.take()["lease"]["marker"]
        child = sleeper(marker, "sh", "-c", "env -i sleep 600 & wait")
        below = eventually(lambda: processes.descendants([child.pid]))
        host.release()
        assert not any(processes.is_alive(pid) for pid in below)

    @pytest.mark.parametrize("held", [True, False])
    def test_what_was_not_fetched_stays_and_nothing_else(self, host: Host, held: bool) -> None:
        home = host.root / "tasks" / "t1-000-here"
        (home / "a1" / "buckets").mkdir(parents=True)
        if held:
            host.take()
        for name in ("r0.out", "r12.result", "r0.stacks", "secret", "env.json"):
            (home / "a1" / name).write_text(name)
        (home / "secrets.json").write_text("{}")
        (home / "a1" / "r1.err").symlink_to("/etc/passwd")
        for _ in range(2):
            assert host.release(retain=True)["ok"]
            left = sorted(str(path.relative_to(home)) for path in home.rglob("*"))
            assert left == ["a1", "a1/r0.out", "a1/r12.result"]
        assert host.held() is None
        # Another task of the same host leaves it alone; who has fetched it removes it.
        host.take("t2")
        assert host.release("t2")["ok"]
        assert (home / "a1" / "r12.result").exists()
        assert host.release()["gone"]
        assert not home.exists()

    def test_a_tree_of_any_depth_goes(self, host: Host) -> None:
        host.take()
        home = host.root / "tasks" / "t1-000-here"
        (home / "a1" / "closed").mkdir(parents=True)
        deep_tree(home / "a1" / "closed")
        (home / "a1" / "closed").chmod(0)
        assert host.release() == {"ok": True, "gone": True}
        assert not home.exists()

    def test_it_may_be_said_again(self, host: Host) -> None:
        host.take()
        assert host.release()["ok"]
        assert host.release()["ok"]

    def test_only_the_task_that_has_it_can(self, host: Host) -> None:
        host.take("t1")
        assert host.release("t2")["ok"]
        held = host.held()
        assert held is not None
        assert held["task"] == "t1"

    def test_what_is_mounted_or_linked_in_the_directory_is_left_alone(
        self, host: Host, tmp_path: Path
    ) -> None:
        host.take()
        kept = tmp_path / "data"
        kept.mkdir()
        (kept / "precious").write_text("x")
        home = host.root / "tasks" / "t1-000-here"
        home.mkdir(parents=True)
        (home / "link").symlink_to(kept)
        host.release()
        assert (kept / "precious").read_text() == "x"
        assert not home.exists()

    @pytest.mark.parametrize("home", ["/etc", "tasks/../../x", "tasks", "tasks/..", "other/x"])
    def test_no_other_directory_is_ever_removed(self, host: Host, home: str) -> None:
        place = host.root / home
        if not place.is_absolute() or str(place).startswith(str(host.root)):
            place.mkdir(parents=True, exist_ok=True)
        assert not cleanup.remove_home(str(host.root), str(place))
        assert place.exists()


class TestLapsing:
    def test_without_a_sign_of_life_it_lapses(
        self, host: Host, sleeper: Callable[..., subprocess.Popen[bytes]]
    ) -> None:
        # Long enough for the process to be there before it lapses, on a busy machine, too.
        taken = host.take(ttl=4.0)
        child = sleeper(taken["lease"]["marker"])
        eventually(lambda: host.held() is None, what="the lease to lapse")
        assert child.wait(timeout=90) == -signal.SIGKILL

    def test_what_the_ranks_wrote_outlives_it(self, host: Host) -> None:
        home = host.root / "tasks" / "t1-000-here" / "a1"
        home.mkdir(parents=True)
        (home / "r0.out").write_text("hello")
        host.take(ttl=0.4)
        eventually(lambda: host.held() is None)
        assert (home / "r0.out").read_text() == "hello"
        # And whoever comes for it takes it away.
        assert host.release()["gone"]
        assert not home.exists()

    def test_an_agent_keeps_it(self, host: Host) -> None:
        home = host.root / "tasks" / "t1-000-here" / "a1"
        home.mkdir(parents=True)
        agent = subprocess.Popen(["sleep", "600"])
        try:
            (home / "agent.pid").write_text(json.dumps(processes.identity(agent.pid)))
            host.take(ttl=0.2)
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                assert host.held() is not None
        finally:
            agent.kill()
            agent.wait()
        eventually(lambda: host.held() is None, what="the lease to lapse with its agent")

    def test_somebody_who_still_sends_files_keeps_it(self, host: Host) -> None:
        blobs = host.root / "blobs"
        blobs.mkdir(parents=True)
        host.take(ttl=2.0)
        until = time.monotonic() + 4.0
        while time.monotonic() < until:
            with open(blobs / ".x.part", "ab") as file:
                file.write(b"more")
            assert host.held() is not None
        eventually(lambda: host.held() is None)

    def test_a_holder_that_is_killed_takes_the_task_with_it(
        self, host: Host, sleeper: Callable[..., subprocess.Popen[bytes]]
    ) -> None:
        child = sleeper(host.take()["lease"]["marker"])
        os.kill(host.holders()[0], signal.SIGKILL)
        assert child.wait(timeout=90) == -signal.SIGKILL
        eventually(lambda: host.held() is None)

    def test_secrets_of_a_task_on_another_host_of_the_same_name_stay(self, host: Host) -> None:
        """Two hosts with one home, made from one image."""
        home = host.root / "tasks" / "t1-000-there"
        (home / "a1").mkdir(parents=True)
        (home / "secrets.json").write_text("{}")
        # Its process is none of this host.
        noted = {"pid": 2**22 + 1, "start": "1", "host": os.uname().nodename}
        (home / "a1" / "agent.pid").write_text(json.dumps(noted))
        with (home / "a1" / "agent.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            host.take("t2")
            assert host.release("t2")["ok"]
            assert (home / "secrets.json").exists()
        host.take("t3")
        assert not (home / "secrets.json").exists()

    def test_what_outlived_holder_and_guard_ends_at_the_next_lease(
        self, host: Host, sleeper: Callable[..., subprocess.Popen[bytes]]
    ) -> None:
        child = sleeper(host.take()["lease"]["marker"])
        for pid in host.holders()[::-1]:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: host.held() is None)
        assert child.poll() is None
        assert host.take("t2")["ok"]
        assert child.wait(timeout=90) == -signal.SIGKILL


class TestSockets:
    def test_what_killed_warm_processes_left_goes_with_the_lease(
        self, host: Host, flow_home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("TMPDIR", str(flow_home))
        directory = Path(runtime_dir.find())
        dead, alive = "0123456789abcdef01234567", "fedcba9876543210fedcba98"
        for name in (dead, alive):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(directory / name))
            listener.listen()
            # The last of them is that of a reaper that is gone.
            for beside in (".json", f".{os.getpid()}.hosts", f".{2**22 + 1}.hosts"):
                (directory / f"{name}{beside}").touch()
            if name == dead:
                listener.close()
        host.take()
        host.release()
        left = {path.name for path in directory.iterdir()} - {"lock"}
        assert {name for name in left if name.startswith(dead)} == {f"{dead}.{os.getpid()}.hosts"}
        assert len([name for name in left if name.startswith(alive)]) == 4
        listener.close()


class TestKeeping:
    def test_the_next_task_of_the_owner_takes_it_at_once(
        self, host: Host, sleeper: Callable[..., subprocess.Popen[bytes]]
    ) -> None:
        marker = host.take("t1")["lease"]["marker"]
        worker, template = sleeper(marker), sleeper(marker)
        kept = host.keep(
            seconds=60, spare=[processes.identity(template.pid)], data={"socket": "/tmp/x"}
        )
        assert kept["lease"]["state"] == "warm"
        assert worker.wait(timeout=90) == -signal.SIGKILL
        assert template.poll() is None
        taken = host.take("t2")
        assert taken["ok"]
        assert taken["lease"]["marker"] == marker
        assert taken["lease"]["warm"] == {"socket": "/tmp/x"}
        assert host.release("t2")["ok"]
        assert template.wait(timeout=90) == -signal.SIGKILL

    def test_nobody_else_does(self, host: Host) -> None:
        host.take("t1")
        host.keep(seconds=60)
        refused = host.take("t2", client="another-home")
        assert not refused["ok"]
        assert refused["held"]["state"] == "warm"
        assert 0 < refused["held"]["left"] <= 60

    def test_it_ends_by_itself(
        self, host: Host, sleeper: Callable[..., subprocess.Popen[bytes]]
    ) -> None:
        template = sleeper(host.take(ttl=1.0)["lease"]["marker"])
        host.keep(seconds=0.3, spare=[processes.identity(template.pid)])
        eventually(lambda: host.held() is None)
        assert template.wait(timeout=90) == -signal.SIGKILL


class _Boot:
    """The time since boot, which a test can pass, and the boot."""

    def __init__(self) -> None:
        self.at = 1000.0
        self.id = "first"

    def start_again(self) -> None:
        self.at, self.id = 60.0, "second"


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> _Boot:
    boot = _Boot()
    monkeypatch.setattr(unused_files, "since_boot", lambda: boot.at)
    monkeypatch.setattr(unused_files.processes, "boot_id", lambda: boot.id)
    return boot


def _fill(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


class TestCleaning:
    def test_what_nobody_has_used_goes(self, tmp_path: Path, boot: _Boot) -> None:
        _fill(tmp_path, "blobs/old", "blobs/used", "tasks/over/a1/r0.out")
        os.link(tmp_path / "blobs" / "used", tmp_path / "in-a-task")
        assert cleanup.by_age(str(tmp_path)) == []
        boot.at += 15 * 86400
        removed = cleanup.by_age(str(tmp_path))
        assert sorted(removed) == [str(tmp_path / "blobs/old"), str(tmp_path / "tasks/over")]
        assert (tmp_path / "blobs" / "used").exists()

    def test_what_is_young_or_was_used_again_stays(self, tmp_path: Path, boot: _Boot) -> None:
        _fill(tmp_path, "blobs/old", "tasks/over/a1/r0.out")
        cleanup.by_age(str(tmp_path))
        boot.at += 13 * 86400
        assert cleanup.by_age(str(tmp_path)) == []
        os.utime(tmp_path / "blobs/old")
        (tmp_path / "tasks/over/a1/r0.out").write_text("more")
        boot.at += 13 * 86400
        assert cleanup.by_age(str(tmp_path)) == []

    def test_time_before_the_host_was_started_again_counts(
        self, tmp_path: Path, boot: _Boot
    ) -> None:
        _fill(tmp_path, "tasks/over/a1/r0.out")
        cleanup.by_age(str(tmp_path))
        boot.at += 10 * 86400
        cleanup.by_age(str(tmp_path))
        boot.start_again()
        assert cleanup.by_age(str(tmp_path)) == []
        boot.at += 5 * 86400
        assert cleanup.by_age(str(tmp_path)) == [str(tmp_path / "tasks/over")]

    @pytest.mark.parametrize("days", [-400, 400, 20_000])
    def test_no_jump_of_the_wall_clock_makes_a_file_old(self, tmp_path: Path, days: int) -> None:
        """Results that were kept yesterday, and the tasks of other hosts that share the directory."""
        _fill(tmp_path, "blobs/one", "tasks/kept/a1/r0.result", "tasks/of-another-host/a1/r0.out")
        cleanup.by_age(str(tmp_path))
        made = time.time() - days * 86400
        for path in [*tmp_path.rglob("*")]:
            os.utime(path, (made, made))
        assert cleanup.by_age(str(tmp_path)) == []
        assert cleanup.by_age(str(tmp_path)) == []

    @pytest.mark.parametrize("said", ["", "{}", "[]", '{"boot": 1, "at": "x", "seen": {"a": 1}}'])
    def test_a_damaged_note_is_written_anew(self, tmp_path: Path, boot: _Boot, said: str) -> None:
        _fill(tmp_path, "tasks/over/a1/r0.out")
        note = tmp_path / f"unused-{os.uname().nodename}.json"
        note.write_text(said)
        assert cleanup.by_age(str(tmp_path)) == []
        boot.at += 15 * 86400
        assert cleanup.by_age(str(tmp_path)) == [str(tmp_path / "tasks/over")]

    def test_the_directory_of_a_task_that_runs_stays(self, tmp_path: Path, boot: _Boot) -> None:
        attempt = tmp_path / "tasks" / "running" / "a1"
        attempt.mkdir(parents=True)
        (attempt / "agent.pid").write_text(json.dumps(processes.identity(os.getpid())))
        cleanup.by_age(str(tmp_path))
        boot.at += 15 * 86400
        assert cleanup.by_age(str(tmp_path)) == []
