"""The fork server: started once, reached at once, gone when nobody needs it, whatever dies."""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.forkserver import client as warm
from flowlite.node.forkserver.server import ForkServer
from flowlite.node.system import processes, runtime_dir
from tests.helpers import assert_no_process_left, eventually, kill_processes_of

TASK = f"t-warm-{os.getpid()}"


@pytest.fixture
def spec(tmp_path: Path) -> Iterator[dict[str, Any]]:
    yield warm.make_spec(
        task=TASK,
        socket=warm.socket_path(f"{TASK}/{tmp_path}"),
        python=sys.executable,
        log=str(tmp_path / "warm.log"),
        function=False,
        idle=0.1,
    )
    kill_processes_of(TASK)


class Client:
    """An agent's end of the connection, in lines."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.connection = warm.join(spec)
        # A file that is both read and written as text drops what it has read ahead when it is written.
        self._file = self.connection.makefile("r", encoding="utf-8")
        self.ready = self.ask("ready", do="hello", node=0, stop_signal=15, grace=0.5)

    def tell(self, **request: Any) -> None:
        self.connection.sendall(json.dumps(request).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        self.connection.settimeout(60)
        try:
            line = self._file.readline()
        except ConnectionResetError:
            # It hung up on what we had just said.
            line = ""
        assert line, "the reaper hung up"
        return json.loads(line)  # type: ignore[no-any-return]

    def ask(self, event: str, **request: Any) -> dict[str, Any]:
        self.tell(**request)
        while (heard := self.hear())["event"] != event:
            pass
        return heard

    def close(self) -> None:
        self._file.close()
        self.connection.close()

    def start(self, directory: Path, *argv: str, rank: int = 0, **environment: str) -> int:
        """Start a command; gives its pid."""
        orders = [order(directory, *argv, rank=rank, **environment)]
        return int(self.ask("started", do="start", orders=orders)["pid"])


def order(directory: Path, *argv: str, rank: int = 0, **environment: str) -> dict[str, Any]:
    files = {
        each: str(directory / f"r{rank}.{each}") for each in ("out", "err", "result", "failure")
    }
    made = {"PATH": os.environ["PATH"], "FLOW_TASK_ID": TASK, "RANK": str(rank), **environment}
    return {
        "rank": rank,
        "local_rank": rank,
        "node": 0,
        "name": "test",
        "environment": made,
        "workdir": None,
        "argv": list(argv),
        **files,
    }


def test_clients_share_one_fork_server_and_it_goes_after_the_last(spec: dict[str, Any]) -> None:
    first, second = Client(spec), Client(spec)
    fork_server = first.ready["fork_server"]
    assert second.ready["fork_server"] == fork_server
    assert first.ready["reaper"] != second.ready["reaper"]
    first.close()
    assert processes.is_alive(fork_server)
    second.close()
    assert_no_process_left(TASK)
    assert not os.path.exists(spec["socket"])


def test_many_at_once_start_only_one(spec: dict[str, Any]) -> None:
    found: list[Client] = []
    threads = [threading.Thread(target=lambda: found.append(Client(spec))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert len({client.ready["fork_server"] for client in found}) == 1
    for client in found:
        client.close()
    assert_no_process_left(TASK)


def test_who_only_has_it_started_does_not_count_as_its_first_agent(spec: dict[str, Any]) -> None:
    warm.begin(spec)
    first = Client(spec)
    time.sleep(spec["idle"] * 2)
    first.close()
    assert_no_process_left(TASK)


def test_it_outlives_an_agent_for_which_no_process_can_be_forked(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Other agents may still need it."""

    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(socket.AF_UNIX) as listener:
        ForkServer(spec, listener)._fork(theirs, {}, b"")
    assert os.strerror(errno.EAGAIN) in capfd.readouterr().err
    assert signal.SIGCHLD not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_socket_left_by_a_killed_one_is_replaced(spec: dict[str, Any]) -> None:
    first = Client(spec)
    os.kill(first.ready["fork_server"], signal.SIGKILL)
    first.close()
    eventually(lambda: not processes.is_alive(first.ready["fork_server"]))
    assert os.path.exists(spec["socket"])
    second = Client(spec)
    assert second.ready["fork_server"] != first.ready["fork_server"]
    second.close()


def test_imports_are_done_before_ready_and_failures_are_told(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "flowlite_test_good.py").write_text("import sys; sys.stderr.write('imported\\n')")
    (tmp_path / "flowlite_test_bad.py").write_text("raise SystemExit('no')")
    spec["environment"] = {"PYTHONPATH": str(tmp_path)}
    spec["imports"] = ["flowlite_test_good", "flowlite_test_bad", "flowlite_test_none"]
    client = Client(spec)
    assert "imported" in (tmp_path / "warm.log").read_text()
    assert set(client.ready["failed_imports"]) == {"flowlite_test_bad", "flowlite_test_none"}
    assert client.ready["hazard"] is None
    client.close()


def test_an_import_that_starts_a_thread_forbids_forking(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "flowlite_test_thread.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), daemon=True, name='bg').start()"
    )
    spec["environment"] = {"PYTHONPATH": str(tmp_path)}
    spec["imports"] = ["flowlite_test_thread"]
    client = Client(spec)
    assert "threads were started by an import (MainThread, bg)" in client.ready["hazard"]
    client.close()


def test_it_has_the_users_environment_from_its_start_but_no_ones_ranks(
    spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.setenv(name, "1")
    spec["environment"] = {"PYTHONHASHSEED": "7"}
    client = Client(spec)
    environment = processes.environment_of(client.ready["fork_server"])
    assert environment["PYTHONHASHSEED"] == "7"
    assert environment["FLOW_TASK_ID"] == TASK
    assert not {"RANK", "SLURM_PROCID"} & set(environment)
    client.close()


def test_the_socket_directory_is_private(monkeypatch: pytest.MonkeyPatch, flow_home: Path) -> None:
    monkeypatch.setattr(runtime_dir, "_home", lambda: str(flow_home))
    monkeypatch.setenv("TMPDIR", str(flow_home))
    first = Path(runtime_dir.find())
    assert first.parent == flow_home
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    first.chmod(0o755)
    second = Path(runtime_dir.find())
    assert second.parent == flow_home / ".cache"
    assert stat.S_IMODE(second.stat().st_mode) == 0o700
    second.chmod(0o755)
    with pytest.raises(OSError, match="open to others"):
        runtime_dir.find()
    monkeypatch.setenv("TMPDIR", str(flow_home / ("x" * 90)))
    assert len(warm.socket_path("any")) < 100


def test_a_home_that_is_not_utf8_has_a_socket_of_its_own() -> None:
    home = os.fsdecode(b"/caf\xe9")
    assert warm.socket_path(home) != warm.socket_path(f"{home}/t-one")
    assert warm.socket_path(home).isascii()


def test_a_python_that_is_not_there_is_named(spec: dict[str, Any]) -> None:
    with pytest.raises(warm.ForkServerError, match="/no/such/python"):
        warm.join({**spec, "python": "/no/such/python"})


STUBBORN = "trap '' TERM INT HUP; echo up >> $0; while :; do sleep 1; done"


class TestWhenSomethingIsKilled:
    """Nothing of ours, of the worker, or of its children may live on."""

    @pytest.fixture
    def client(self, spec: dict[str, Any]) -> Client:
        return Client(spec)

    @pytest.fixture
    def worker(self, client: Client, tmp_path: Path) -> int:
        """A worker that ignores SIGTERM, with one such child in its group and one in a session of its own."""
        flag = tmp_path / "up"
        inner = f'sh -c "{STUBBORN}" {flag}'
        pid = client.start(
            tmp_path, "sh", "-c", f"{inner} & setsid {inner} & {STUBBORN}", str(flag)
        )
        eventually(lambda: flag.exists() and flag.read_text().count("up") == 3, what="all three")
        return pid

    def test_the_agents_connection(self, client: Client, worker: int) -> None:
        client.close()
        assert_no_process_left(TASK)

    def test_the_worker(self, client: Client, worker: int) -> None:
        os.kill(worker, signal.SIGKILL)
        ended = client.ask("exited", do="nothing")
        assert (ended["code"], ended["signal"]) == (None, signal.SIGKILL)
        # All it left is gone by the time it is reported.
        assert len(processes.marked({"FLOW_TASK_ID": TASK})) == 2
        client.close()

    def test_the_reaper(self, client: Client, worker: int) -> None:
        os.kill(client.ready["reaper"], signal.SIGKILL)
        assert_no_process_left(TASK)

    def test_the_fork_server(self, client: Client, worker: int) -> None:
        os.kill(client.ready["fork_server"], signal.SIGKILL)
        # The node's workers do not need it any more.
        assert client.ask("probed", do="probe", paths=[], token="x", write=False)["missing"] == []
        assert processes.is_alive(worker)
        client.close()
        assert_no_process_left(TASK)

    def test_the_fork_server_is_asked_to_end(self, client: Client, worker: int) -> None:
        os.kill(client.ready["fork_server"], signal.SIGTERM)
        assert client.ask("exited", do="nothing")["stopped"]
        client.close()
        assert_no_process_left(TASK)


def test_where_nothing_can_be_written_it_says_so(spec: dict[str, Any]) -> None:
    """A limit of files' sizes is as a full /tmp: names can be made, and nothing can be written."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            warm.begin(spec)
        except warm.ForkServerError as error:
            wanted = f"nothing can be written to {os.path.dirname(spec['socket'])} (File too large)"
            os._exit(0 if wanted in str(error) and error.errno == errno.EFBIG else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
