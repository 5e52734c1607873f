"""A fork server that stays for the next task: who may use it, what it may know, and when it goes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import py_compile
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.config.agent_config import AttemptPaths
from flowlite.node.forkserver import client as warm
from flowlite.node.forkserver import compatibility, registry, staleness
from flowlite.node.forkserver.worker_group import Workers
from flowlite.node.system import process_title, processes, runtime_dir
from tests.helpers import eventually, processes_of
from tests.node.test_warm import Client, order

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(not processes.LINUX, reason="nothing is forked elsewhere")


@pytest.fixture(autouse=True)
def place(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of sockets of its own, so that nobody else's fork servers are met."""
    monkeypatch.setenv("TMPDIR", str(flow_home))
    yield flow_home
    registry.end(registry.all_of(runtime_dir.find()))


def spec_of(task: str = "t-one", **changes: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"task": task, "python": sys.executable, "seconds": 60.0}
    return warm.make_kept_spec(**{**options, **changes})


def joined_again(spec: dict[str, Any]) -> Client:
    """As an agent does: one that was sent away by a fork server that retires finds another."""
    # Whether it is gone before or after we have said something.
    with pytest.raises((AssertionError, BrokenPipeError), match=r"hung up|Broken pipe"):
        Client(spec)
    return Client(spec)


def gone(pid: int) -> None:
    eventually(lambda: not processes.is_alive(pid), what=f"the end of {pid}")


def test_the_next_task_finds_what_the_last_one_imported() -> None:
    first = Client(spec_of("t-one", imports=["colorsys"]))
    assert first.ready["prepare_seconds"] > 0
    first.close()
    second = Client(spec_of("t-two", imports=["colorsys"]))
    assert second.ready["fork_server"] == first.ready["fork_server"]
    assert second.ready["reaper"] != first.ready["reaper"]
    second.close()


def test_one_that_takes_its_socket_itself_does_so_while_nobody_cleans_up(tmp_path: Path) -> None:
    """As in a container. A socket without a listener would be removed as that of a killed fork server."""
    path = warm.socket_path("t-one")
    spec = warm.make_spec(
        task="t-one", socket=path, python=sys.executable, log=str(tmp_path / "log")
    )
    (tmp_path / "spec.json").write_text(json.dumps({**spec, "inside": True}))
    with registry.alone(path):
        command = processes.own_command(sys.executable, "warm", str(tmp_path / "spec.json"))
        child = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
        eventually(lambda: waits_for_lock(child.pid), what="its wait for the lock")
        assert not os.path.exists(path)
    eventually(lambda: os.path.exists(path), what="its socket")
    registry.tidy_alone(runtime_dir.find())
    registry.retire(path)
    assert child.wait(60) == 0


def waits_for_lock(pid: int) -> bool:
    """Whether a process waits for a lock of a file, as the kernel says."""
    waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1] == "->" and words[5] == str(pid) for words in waiting)


def test_it_says_whether_it_can_be_used() -> None:
    first = Client(spec_of())
    (server,) = registry.all_of(runtime_dir.find())
    assert registry.answers(server)
    # Without its name nobody finds it any more, although it runs on with its agent.
    registry.retire(server.socket)
    eventually(lambda: not registry.answers(server))
    assert server.alive
    first.close()
    gone(server.pid)
    assert not registry.answers(server)


def test_it_imports_what_a_later_task_needs_beyond_that(place: Path) -> None:
    (place / "flowlite_test_more.py").write_text("MORE = 1")
    path = {"PYTHONPATH": str(place)}
    first = Client(spec_of("t-one", environment=path))
    second = Client(
        spec_of("t-two", environment=path, imports=["flowlite_test_more", "flowlite_test_none"])
    )
    assert second.ready["fork_server"] == first.ready["fork_server"]
    assert list(second.ready["failed_imports"]) == ["flowlite_test_none"]
    assert first.ready["failed_imports"] == {}
    first.close()
    second.close()


def test_what_is_imported_early_is_there_when_the_agents_come(place: Path) -> None:
    mark = place / "imported"
    (place / "flowlite_test_early.py").write_text(f"open({str(mark)!r}, 'w').close()")
    path = {"PYTHONPATH": str(place)}
    Client(spec_of("t-one", environment=path)).close()
    warm.begin(spec_of("t-two", environment=path, imports=["flowlite_test_early"]))
    eventually(mark.exists)
    Client(spec_of("t-two", environment=path)).close()


def test_each_task_finds_its_own_processes_and_none_finds_the_fork_server(place: Path) -> None:
    # Other tests beside this one have tasks "t-one", too.
    mine, other = f"t-one-{os.getpid()}", f"t-two-{os.getpid()}"
    one, two = Client(spec_of(mine)), Client(spec_of(other))
    assert one.ready["fork_server"] == two.ready["fork_server"]
    worker = one.start(place, "sleep", "600", FLOW_TASK_ID=mine)
    assert set(processes_of(mine)) == {one.ready["reaper"], worker}
    assert set(processes_of(other)) == {two.ready["reaper"]}
    environment = processes.environment_of(one.ready["reaper"])
    assert environment == {"FLOW_TASK_ID": mine, "FLOW_HOME": str(place)}
    assert "FLOW_TASK_ID" not in processes.environment_of(one.ready["fork_server"])
    one.close()
    gone(worker)
    assert processes.is_alive(two.ready["reaper"])
    two.close()


def test_a_mark_is_seen_by_others_and_changes_nothing_for_the_process_itself() -> None:
    script = (
        "import os, sys, ctypes; sys.path.insert(0, sys.argv[1])\n"
        "from flowlite.node.system import process_title as marks\n"
        "assert marks.mark({'FLOW_TASK_ID': 't-mark', 'B': '2'})\n"
        "print(open('/proc/self/environ').read().rstrip(chr(0)).replace(chr(0), ' '))\n"
        "get = ctypes.CDLL(None).getenv; get.restype = ctypes.c_char_p\n"
        "print(os.environ['KEPT'], get(b'KEPT').decode(), get(b'FLOW_TASK_ID'))\n"
        "pid = os.fork()\n"
        "if pid: os.waitpid(pid, 0)\n"
        "else: print(open('/proc/self/environ').read().count('t-mark')); sys.stdout.flush(); os._exit(0)\n"
        "assert not marks.mark({'LONG': 'x' * 100000})\n"
        "assert marks.mark({'FLOW_HOME': os.fsdecode(b'/caf\\xe9')})\n"
        "print(open('/proc/self/environ', 'rb').read().rstrip(bytes(1)))\n"
    )
    root = str(Path(__file__).resolve().parent.parent.parent)
    environment = {**os.environ, "KEPT": "here", process_title.PADDING: process_title.room()}
    shown = subprocess.run(
        [sys.executable, "-u", "-c", script, root],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.splitlines() == [
        *("FLOW_TASK_ID=t-mark B=2", "here here None", "1"),
        r"b'FLOW_HOME=/caf\xe9'",
    ]


class TestWhoMayShare:
    """The key is made from all that a process takes from whoever starts it, and from nothing else."""

    @pytest.mark.parametrize(
        "variable", ["CUDA_VISIBLE_DEVICES", "PYTHONPATH", "HF_HOME", "FLOW_HOME", "FLOW_LEASE"]
    )
    def test_not_with_another_environment(
        self, variable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = spec_of()["socket"]
        monkeypatch.setenv(variable, "/another")
        assert spec_of()["socket"] != before

    def test_not_with_other_variables_of_the_task(self) -> None:
        assert spec_of()["socket"] != spec_of(environment={"A": "1"})["socket"]

    @pytest.mark.parametrize(
        "variable", ["SSH_CLIENT", "PWD", "TERM", "SHLVL", "FLOW_TASK_ID", "RANK"]
    )
    def test_but_from_another_terminal_or_worker(
        self, variable: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = spec_of()
        monkeypatch.setenv(variable, "another")
        assert spec_of()["socket"] == before["socket"]
        assert variable not in spec_of()["environment"]

    def test_not_with_another_python(self, place: Path) -> None:
        other = place / "python"
        other.symlink_to(sys.executable)
        assert spec_of()["socket"] != spec_of(python=str(other))["socket"]

    def test_not_with_other_limits(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
        before = compatibility.surroundings()
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0 if soft else min(1, hard), hard))
            changed = compatibility.surroundings()
        finally:
            resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        assert hard == 0 or changed != before

    def test_not_with_another_umask(self) -> None:
        before = compatibility.surroundings()
        umask = os.umask(0o027)
        try:
            assert compatibility.surroundings() != before
        finally:
            os.umask(umask)
        assert compatibility.surroundings() == before

    def test_a_secret_is_in_nobodys_environment_but_the_workers(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without = spec_of()["socket"]
        monkeypatch.setenv("API_TOKEN", "s3cret")
        spec = spec_of(secrets=["API_TOKEN"])
        assert spec["socket"] == without
        client = Client(spec)
        for process in ("fork_server", "reaper"):
            raw = Path(f"/proc/{client.ready[process]}/environ").read_bytes()
            assert b"s3cret" not in raw
        for left in Path(spec["socket"]).parent.iterdir():
            assert left.is_socket() or b"s3cret" not in left.read_bytes()
        client.close()


class TestWhatHasChangedOnTheDisk:
    """A worker must not be forked from what was there before."""

    @pytest.fixture
    def package(self, place: Path) -> Path:
        module = place / "flowlite_test_edited.py"
        module.write_text("VALUE = 1")
        return module

    def spec(self, package: Path, task: str) -> dict[str, Any]:
        path = {"PYTHONPATH": str(package.parent)}
        return spec_of(task, environment=path, imports=["flowlite_test_edited"])

    def test_an_imported_file_that_was_edited_makes_another_fork_server(
        self, package: Path
    ) -> None:
        first = Client(self.spec(package, "t-one"))
        package.write_text("VALUE = 22")
        second = joined_again(self.spec(package, "t-two"))
        assert second.ready["fork_server"] != first.ready["fork_server"]
        # Who uses the old one is not disturbed, and it goes with the last of them.
        assert first.ask("probed", do="probe", paths=[], token="x", write=False)
        assert processes.is_alive(first.ready["fork_server"])
        first.close()
        gone(first.ready["fork_server"])
        third = Client(self.spec(package, "t-three"))
        assert third.ready["fork_server"] == second.ready["fork_server"]
        second.close()
        third.close()

    def test_it_is_seen_when_the_imports_begin_early(self, package: Path) -> None:
        first = Client(self.spec(package, "t-one"))
        first.close()
        package.unlink()
        warm.begin(spec_of(environment={"PYTHONPATH": str(package.parent)}))
        gone(first.ready["fork_server"])

    def test_something_installed_makes_another_fork_server(self, place: Path) -> None:
        installed = place / "site-packages"
        installed.mkdir()
        path = {"PYTHONPATH": str(installed)}
        first = Client(spec_of("t-one", environment=path))
        first.close()
        (installed / "new.dist-info").mkdir()
        second = joined_again(spec_of("t-two", environment=path))
        assert second.ready["fork_server"] != first.ready["fork_server"]
        second.close()

    def test_what_lies_beside_the_imported_file_does_not_matter(self, package: Path) -> None:
        first = Client(self.spec(package, "t-one"))
        (package.parent / "train.py").write_text("edited = True")
        second = Client(self.spec(package, "t-two"))
        assert second.ready["fork_server"] == first.ready["fork_server"]
        first.close()
        second.close()

    def test_a_file_that_is_edited_while_it_is_imported_makes_another_fork_server(
        self, package: Path
    ) -> None:
        seen = package.parent / "seen"
        package.write_text(
            f"open({str(seen)!r}, 'w').write('old')\nopen(__file__, 'w').write('VALUE = 1\\n')\n"
        )
        # What an agent does: it is sent away, and the next one takes what is there now.
        second = joined_again(self.spec(package, "t-one"))
        assert seen.read_text() == "old"
        third = Client(self.spec(package, "t-two"))
        assert third.ready["fork_server"] == second.ready["fork_server"]
        second.close()
        third.close()

    def test_what_is_as_it_was_is_not_taken_for_changed(self) -> None:
        watched = staleness.Loaded()
        watched.note()
        assert watched.changed() is None

    @pytest.mark.parametrize("kind", ["source", "sourceless", "extension"])
    def test_what_a_file_was_before_it_was_read_counts(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        source = place / f"flowlite_test_{kind}.py"
        source.write_text("VALUE = 1")
        if kind == "extension":
            found = importlib.util.find_spec("_bisect")
            if found is None or not str(found.origin).endswith(".so"):
                pytest.skip("no extension module to copy")
            source.unlink()
            source = place / "_bisect.so"
            shutil.copy(str(found.origin), source)
            monkeypatch.delitem(sys.modules, "_bisect", raising=False)
        elif kind == "sourceless":
            compiled = source.with_suffix(".pyc")
            py_compile.compile(str(source), str(compiled))
            source.unlink()
            source = compiled
        os.utime(source, (1e9, 1e9))
        monkeypatch.syspath_prepend(str(place))
        watched = staleness.Loaded()
        name = source.name.partition(".")[0]
        with watched.importing():
            module = importlib.import_module(name)
            # Read by now; whatever follows, such as the end of its import, takes time.
            os.utime(source)
        monkeypatch.delitem(sys.modules, name)
        assert module.__file__ == str(source)
        assert watched.changed() == str(source)

    def test_an_edit_in_the_same_moment_is_seen(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """File systems tell times apart no finer than some milliseconds, or two seconds."""
        source = place / "flowlite_test_same.py"
        source.write_text("VALUE = 1")
        monkeypatch.syspath_prepend(str(place))
        watched = staleness.Loaded()
        with watched.importing():
            importlib.import_module("flowlite_test_same")
        monkeypatch.delitem(sys.modules, "flowlite_test_same")
        before = source.stat()
        with source.open("r+") as file:
            file.write("VALUE = 2")
        os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert watched.changed() == str(source)

    def test_importing_leaves_the_loaders_as_they_were(self) -> None:
        from importlib import machinery

        loaders = (
            machinery.SourceFileLoader,
            machinery.SourcelessFileLoader,
            machinery.ExtensionFileLoader,
        )
        before = [dict(vars(each)) for each in loaders]
        with staleness.Loaded().importing():
            pass
        assert [dict(vars(each)) for each in loaders] == before


class TestWhenItGoes:
    def test_by_itself_after_its_time(self) -> None:
        client = Client(spec_of(seconds=0.3))
        template = client.ready["fork_server"]
        time.sleep(0.5)
        assert processes.is_alive(template)
        client.close()
        gone(template)
        assert registry.all_of(runtime_dir.find()) == []
        assert not [name for name in os.listdir(runtime_dir.find()) if "kept" in name]

    def test_the_longest_wish_counts(self) -> None:
        long, short = Client(spec_of("t-one", seconds=60)), Client(spec_of("t-two", seconds=0.1))
        long.close()
        eventually(lambda: self.state(short).agents == 1)
        short.close()
        eventually(lambda: self.state(short).agents == 0)
        until = self.state(short).until
        assert until is not None
        assert until > time.time() + 30

    def test_with_everything_else_killed(self) -> None:
        client = Client(spec_of(seconds=0.2))
        os.kill(client.ready["reaper"], signal.SIGKILL)
        gone(client.ready["fork_server"])

    def test_killed_itself_it_is_replaced(self) -> None:
        first = Client(spec_of("t-one"))
        first.close()
        os.kill(first.ready["fork_server"], signal.SIGKILL)
        gone(first.ready["fork_server"])
        assert registry.all_of(runtime_dir.find()) == []
        second = Client(spec_of("t-two"))
        assert second.ready["fork_server"] != first.ready["fork_server"]
        second.close()

    def test_the_one_unused_for_longest_makes_room_for_another(self) -> None:
        clients = [Client(spec_of(environment={"N": str(n)}, most=2)) for n in range(2)]
        templates = [client.ready["fork_server"] for client in clients]
        for client in reversed(clients):
            client.close()
            eventually(lambda client=client: self.state(client).agents == 0)
        third = Client(spec_of(environment={"N": "2"}, most=2))
        gone(templates[1])
        assert processes.is_alive(templates[0])
        third.close()

    def test_its_agent_is_counted_before_it_hears_of_its_reaper(self) -> None:
        for _ in range(50):
            client = Client(spec_of())
            assert self.state(client).agents == 1
            client.close()
            eventually(lambda client=client: self.state(client).agents == 0)

    def test_what_a_killed_one_left_is_removed_with_the_next_start(self) -> None:
        client = Client(spec_of(environment={"N": "1"}))
        os.kill(client.ready["fork_server"], signal.SIGKILL)
        client.close()
        gone(client.ready["fork_server"])
        left = Path(client.ready["socket"])
        assert left.exists()
        # It was noting what it is.
        left.with_name(f"{left.name}.state.part").touch()
        Client(spec_of(environment={"N": "2"})).close()
        assert not list(left.parent.glob(f"{left.name}*"))

    def test_those_in_use_stay(self) -> None:
        clients = [Client(spec_of(environment={"N": str(n)}, most=1)) for n in range(3)]
        assert all(processes.is_alive(client.ready["fork_server"]) for client in clients)
        for client in clients:
            client.close()

    def test_at_once_when_asked_or_with_its_last_agent(self) -> None:
        idle, used = Client(spec_of()), Client(spec_of(environment={"A": "1"}))
        idle.close()
        eventually(lambda: self.state(idle).agents == 0)
        registry.end(registry.all_of(runtime_dir.find()))
        assert not processes.is_alive(idle.ready["fork_server"])
        assert processes.is_alive(used.ready["fork_server"])
        used.close()
        gone(used.ready["fork_server"])

    def test_as_soon_as_nothing_can_be_forked_from_it(self, place: Path) -> None:
        (place / "flowlite_test_thread.py").write_text(
            "import threading, time\n"
            "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
        )
        client = Client(
            spec_of(environment={"PYTHONPATH": str(place)}, imports=["flowlite_test_thread"])
        )
        assert client.ready["hazard"]
        client.close()
        gone(client.ready["fork_server"])

    def test_asked_to_end_it_ends_what_it_started(self, place: Path) -> None:
        client = Client(spec_of())
        worker = client.start(place, "sleep", "600")
        os.kill(client.ready["fork_server"], signal.SIGTERM)
        assert client.ask("exited", do="nothing")["stopped"]
        gone(worker)
        client.close()
        gone(client.ready["fork_server"])

    def state(self, client: Client) -> registry.WarmServer:
        found = [
            each
            for each in registry.all_of(runtime_dir.find())
            if each.pid == client.ready["fork_server"]
        ]
        assert found
        return found[0]


def test_nonsense_on_the_socket_does_no_harm() -> None:
    client = Client(spec_of())
    for nonsense in (b"\n", b"{\n", b'{"do": "import"', b"x" * 100_000 + b"\n"):
        with warm.join({**spec_of(), "imports": []}) as other:
            other.close()
        connection = warm._connect(client.ready["socket"])
        assert connection is not None
        connection.sendall(nonsense)
        connection.close()
    assert Client(spec_of()).ready["fork_server"] == client.ready["fork_server"]
    client.close()


def test_a_command_of_the_reaper_is_run_as_ever(place: Path) -> None:
    client = Client(spec_of())
    client.start(place, "sh", "-c", "echo $RANK")
    assert client.ask("exited", do="nothing")["code"] == 0
    assert (place / "r0.out").read_text() == "0\n"
    assert json.dumps(order(place, "true"))
    client.close()


def test_nothing_of_a_reaper_that_was_killed_stays_beside_the_socket() -> None:
    client = Client(spec_of())
    os.kill(client.ready["reaper"], signal.SIGKILL)
    socket = Path(client.ready["socket"])
    eventually(lambda: not list(socket.parent.glob(f"{socket.name}.*.hosts")))
    client.close()


def test_an_agent_that_meets_a_stale_template_goes_on_with_another(place: Path) -> None:
    module = place / "flowlite_test_stale.py"
    module.write_text("VALUE = 1")
    path = {"PYTHONPATH": str(place)}
    first = Client(spec_of("t-one", environment=path, imports=["flowlite_test_stale"]))
    module.write_text("VALUE = 22")

    async def connect() -> dict[str, Any]:
        spec = spec_of("t-two", environment=path, imports=["flowlite_test_stale"])
        workers = Workers(
            spec,
            AttemptPaths(place),
            node=0,
            task="t-two",
            attempt=1,
            stop_signal=signal.SIGTERM,
            grace=0.5,
            report=lambda body: None,
        )
        async with asyncio.timeout(60):
            found = await workers.connect()
        await workers.close()
        return found

    found = asyncio.run(connect())
    assert found["fork_server"] != first.ready["fork_server"]
    assert found["failed_imports"] == {}
    first.close()
