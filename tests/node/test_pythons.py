"""Environments for workers: made once, whole or not at all, cached, and refused with words that help."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.config.agent_config import AgentConfig, AttemptPaths
from flowlite.node.python_env import environments, interpreters, uv
from flowlite.node.system import processes
from tests.components import python_of
from tests.helpers import eventually
from tests.node.agents import RealGang
from tests.wheels import make_wheel, serve_index, use_no_index

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
OTHERS = [
    minor
    for minor in ("3.10", "3.11", "3.12", "3.13")
    if minor != HERE and python_of(minor) is not None
]
SHOW = ["python", "-c", "import sys, probe_one; print(probe_one.VERSION, sys.prefix)"]


@pytest.fixture(autouse=True)
def no_other_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Packages come from where a test says, and from nowhere else."""
    use_no_index(monkeypatch, tmp_path / "uv-cache")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    directory = tmp_path / "wheels"
    make_wheel(directory, "probe-one", "1.0")
    make_wheel(directory, "probe-two", "2.5", requires=["probe-one"])
    return directory


@pytest.fixture
def index(wheels: Path) -> Iterator[str]:
    with serve_index(wheels) as address:
        yield address


def uv_here() -> str:
    found = uv.own()
    if found is not None:
        return found
    from uv import find_uv_bin

    return str(find_uv_bin())


class Place:
    """A node's directory, and a configuration in it."""

    def __init__(self, root: Path, index: str | None = None) -> None:
        self.paths = AttemptPaths(root / "node" / "a1")
        self.envs = root / "envs"
        self.paths.directory.mkdir(parents=True, exist_ok=True)
        settings = {"UV_NO_INDEX": "1"} if index is None else {"UV_DEFAULT_INDEX": index}
        self.paths.packages.write_text(json.dumps(settings))

    def spec(self, requirements: str | None = "probe-two\n", **changes: Any) -> dict[str, Any]:
        return {
            "python": HERE,
            "requirements": requirements,
            "directory": str(self.envs),
            "uv": uv_here(),
            **changes,
        }

    def ready(self, spec: dict[str, Any], **options: Any) -> environments.Ready:
        config = AgentConfig(
            task="t",
            name="t",
            attempt=1,
            instance="i",
            roster=["i"],
            processes_per_node=1,
            call={"kind": "command", "argv": ["true"]},
            python=sys.executable,
            python_spec=spec,
            **options,
        )
        return asyncio.run(environments.ready(config, self.paths))

    def made(self) -> list[Path]:
        return [path for path in self.envs.iterdir() if path.is_dir()]


class TestAnEnvironment:
    def test_contains_what_was_asked_for_and_nothing_else(self, tmp_path: Path, index: str) -> None:
        ready = Place(tmp_path, index).ready(Place(tmp_path, index).spec())
        code = "import probe_two, probe_one, sys; print(probe_two.VERSION, sys.prefix != sys.base_prefix)"
        shown = subprocess.run([ready.python, "-c", code], capture_output=True, text=True)
        assert shown.stdout.split() == ["2.5", "True"], shown.stderr
        assert environments.packages_of(ready.python) == ["probe-one==1.0", "probe-two==2.5"]
        alone = subprocess.run([ready.python, "-c", "import pytest"], capture_output=True)
        assert alone.returncode != 0

    def test_is_made_once_and_used_again_without_any_index(
        self, tmp_path: Path, wheels: Path
    ) -> None:
        with serve_index(wheels) as address:
            first = Place(tmp_path, address).ready(Place(tmp_path, address).spec())
        note = Path(first.python).parent.parent / "flowlite.json"
        os.utime(note, (1, 1))
        again = Place(tmp_path, "http://127.0.0.1:9/simple")
        assert again.ready(again.spec("# a comment\n\nprobe-two\n")).python == first.python
        assert note.stat().st_mtime > 1, "use is not noted"

    def test_other_contents_make_another_one(self, tmp_path: Path, index: str) -> None:
        place = Place(tmp_path, index)
        one, two = place.ready(place.spec("probe-one")), place.ready(place.spec("probe-two"))
        assert one.python != two.python
        assert len(place.made()) == 2

    @pytest.mark.parametrize("mark", [None, b""], ids=["no-mark", "empty-mark"])
    def test_of_a_half_made_one_nothing_is_used(
        self, tmp_path: Path, index: str, mark: bytes | None
    ) -> None:
        place = Place(tmp_path, index)
        ready = place.ready(place.spec())
        path = Path(ready.python).parent.parent
        assert ready.lock is not None
        os.close(ready.lock)
        (path / "flowlite.json").unlink()
        if mark is not None:
            (path / "flowlite.json").write_bytes(mark)
        (path / "leftover").write_text("of an interrupted run")
        assert place.ready(place.spec()).python == ready.python
        assert not (path / "leftover").exists()
        assert environments.is_whole(path)

    def test_is_made_again_when_its_python_has_gone(self, tmp_path: Path, index: str) -> None:
        place = Place(tmp_path, index)
        ready = place.ready(place.spec())
        assert ready.lock is not None
        os.close(ready.lock)
        path = Path(ready.python).parent.parent
        (path / "bin" / "python").unlink()
        (path / "bin" / "python").symlink_to(tmp_path / "gone")
        assert not environments.is_whole(path)
        place.ready(place.spec())
        assert environments.is_whole(path)

    def test_is_made_again_in_a_directory_that_was_moved(self, tmp_path: Path, index: str) -> None:
        """Console scripts name their Python by its path, such as `torchrun` or `accelerate`."""
        before = Place(tmp_path, index)
        ready = before.ready(before.spec("probe-one", setup="x"))
        assert ready.lock is not None
        os.close(ready.lock)
        place = Place(tmp_path, index)
        place.envs = tmp_path / "moved"
        before.envs.rename(place.envs)
        again = place.ready(place.spec("probe-one", setup="x"))
        pip = Path(again.python).with_name("pip")
        shown = subprocess.run([pip, "--version"], capture_output=True, text=True, check=True)
        assert str(place.envs) in shown.stdout

    def test_nothing_to_install_needs_no_environment(self, tmp_path: Path) -> None:
        place = Place(tmp_path)
        assert place.ready(place.spec(None)).python == sys.executable
        assert not place.envs.exists()

    def test_an_empty_list_is_an_empty_environment(self, tmp_path: Path) -> None:
        place = Place(tmp_path)
        ready = place.ready(place.spec(""))
        assert ready.python != sys.executable
        assert environments.packages_of(ready.python) == []

    def test_is_made_where_the_home_cannot_be_written_to(
        self, tmp_path: Path, index: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("UV_CACHE_DIR", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", "/dev/null/home")
        place = Place(tmp_path, index)
        assert environments.packages_of(place.ready(place.spec()).python)
        assert (place.envs / "cache").is_dir()
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert uv.cache(place.envs / "cache") == {}

    def test_settings_of_the_task_win_over_those_that_came_along(
        self, tmp_path: Path, index: str
    ) -> None:
        place = Place(tmp_path, "http://127.0.0.1:9/simple")
        ready = place.ready(place.spec(), environment={"UV_DEFAULT_INDEX": index})
        assert "probe-two==2.5" in environments.packages_of(ready.python)


class TestSeveralAtATime:
    def test_all_wait_for_the_one_that_makes_it(self, tmp_path: Path, wheels: Path) -> None:
        served: list[str] = []
        with serve_index(wheels, on_file=served.append) as address:
            alone = Place(tmp_path / "alone", address)
            alone.ready(alone.spec())
            by_one, served[:] = len(served), []
            place = Place(tmp_path, address)
            shutil.rmtree(tmp_path / "uv-cache")
            ready: list[environments.Ready] = []
            threads = [
                threading.Thread(target=lambda: ready.append(place.ready(place.spec())))
                for _ in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert len({each.python for each in ready}) == 1
        assert len(ready) == 4
        assert len(served) == by_one

    def test_one_that_is_killed_leaves_the_work_to_the_next(
        self, tmp_path: Path, wheels: Path
    ) -> None:
        asked, go_on = threading.Event(), threading.Event()

        def hold(name: str) -> None:
            asked.set()
            go_on.wait(90)

        argv = ["python", "-c", "import probe_one; print(probe_one.VERSION)"]
        with serve_index(wheels, on_file=hold) as address:
            place = Place(tmp_path, address)
            options = {"python_spec": place.spec("probe-one"), "shared": False}
            call = {"kind": "command", "argv": argv}
            environment = {"UV_DEFAULT_INDEX": address}
            with RealGang(
                tmp_path / "g", call, nodes=1, environment=environment, **options
            ) as gang:
                agent = gang.start_agent(0)
                assert asked.wait(90)
                child = eventually(lambda: _uv_below(agent.pid))
                agent.kill()
                eventually(lambda: not processes.is_alive(child), what="uv ends with its agent")
                assert not any(environments.is_whole(path) for path in place.made())
            begun = [path.name for path in place.made()]
            assert begun
            assert environments.clean(place.envs, 3600) == begun
            go_on.set()
            assert "probe-one==1.0" in environments.packages_of(
                place.ready(place.spec("probe-one")).python
            )

    def test_clean_removes_what_is_old_and_unused(self, tmp_path: Path, index: str) -> None:
        place = Place(tmp_path, index)
        used, unused = place.ready(place.spec("probe-one")), place.ready(place.spec("probe-two"))
        assert used.lock is not None
        assert unused.lock is not None
        os.close(unused.lock)
        for each in (used, unused):
            os.utime(Path(each.python).parent.parent / "flowlite.json", (1, 1))
        assert environments.clean(place.envs, 3600) == [Path(unused.python).parent.parent.name]
        os.close(used.lock)
        place.ready(place.spec("probe-one"))
        assert environments.clean(place.envs, 3600) == [], "it was just used"

    def test_a_lock_that_uv_holds_keeps_others_out(self, tmp_path: Path) -> None:
        """An agent that is gone does not free the lock while its uv still writes."""
        lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        tool = tmp_path / "uv"
        tool.write_text("#!/bin/sh\necho started > $1\nexec sleep 60\n")
        tool.chmod(0o755)
        started = tmp_path / "started"

        async def run() -> None:
            running = asyncio.create_task(uv.Uv(str(tool), {}, lock).run(str(started)))
            while not started.exists():
                await asyncio.sleep(0.01)
            os.close(lock)
            other = os.open(tmp_path / "lock", os.O_RDWR)
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            running.cancel()
            await asyncio.wait([running])
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(other)

        asyncio.run(run())


class TestRefusals:
    def test_an_index_out_of_reach_is_named_without_its_password(self, tmp_path: Path) -> None:
        place = Place(tmp_path, "http://me:hunter2@127.0.0.1:9/simple")
        with pytest.raises(environments.PythonError) as caught:
            place.ready(place.spec())
        told = str(caught.value)
        assert "probe-two" in told
        assert "127.0.0.1:9/simple" in told
        assert "cannot be reached" in told
        assert "hunter2" not in told
        assert not [path for path in place.made() if environments.is_whole(path)]

    def test_a_package_that_is_not_there_is_named(self, tmp_path: Path, index: str) -> None:
        place = Place(tmp_path, index)
        with pytest.raises(environments.PythonError, match="probe-none"):
            place.ready(place.spec("probe-none==7\n"))
        # Where the disk is full, what has come of it would fill it for the next one, too.
        assert place.made() == []

    def test_a_version_that_nothing_has_says_what_there_is(self, tmp_path: Path) -> None:
        place = Place(tmp_path)
        wanted = place.spec(None, python="3.99")
        with pytest.raises(environments.PythonError) as caught:
            place.ready(wanted)
        told = str(caught.value)
        assert "Python 3.99 is needed on this node" in told
        assert interpreters.version_here() in told
        assert "image=" in told

    def test_without_uv_it_says_why_there_is_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = Place(tmp_path)
        monkeypatch.setattr(uv, "own", lambda: None)
        spec = place.spec(uv=None, why_no_uv="the registry did not answer")
        with pytest.raises(environments.PythonError, match="the registry did not answer"):
            place.ready(spec)

    @pytest.mark.parametrize(
        "credentials", ["token", "me:hunter2", "me:hun@ter2", "me:@hunter2@", ":hunter2"]
    )
    def test_no_part_of_credentials_is_shown(self, credentials: str) -> None:
        """A password may have an `@`, which uv takes as it is."""
        index = f"https://{credentials}@example.org:8080/simple"
        assert uv.without_credentials(index) == "https://***@example.org:8080/simple"
        told = uv.Uv("uv", {"UV_DEFAULT_INDEX": index}, 0).index
        assert told == "https://***@example.org:8080/simple"
        both = f"a @ git+{index}, b @ {index} by me@example.org"
        shown = "https://***@example.org:8080/simple"
        assert uv.without_credentials(both) == f"a @ git+{shown}, b @ {shown} by me@example.org"

    def test_credentials_reach_the_index_and_nobody_else(
        self, tmp_path: Path, wheels: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with serve_index(wheels, user="me", password="hunter2") as address:
            place = Place(tmp_path, address)
            ready = place.ready(place.spec())
        assert "probe-two==2.5" in environments.packages_of(ready.python)
        assert "hunter2" not in caplog.text
        written = [path for path in place.envs.rglob("*") if path.is_file()]
        assert not [path for path in written if b"hunter2" in path.read_bytes()]


class TestOtherPythons:
    def test_one_that_was_installed_for_tasks_is_found(self, tmp_path: Path) -> None:
        place = Place(tmp_path)
        python = place.envs / "python" / "cpython-3.99.1-linux" / "bin" / "python3.99"
        python.parent.mkdir(parents=True)
        python.write_text("#!/bin/sh\nprintf cpython-3.99.1\n")
        python.chmod(0o755)
        assert place.ready(place.spec(None, python="3.99")).python == str(python)

    @pytest.mark.needs("pypy")
    def test_pypy_is_told_from_cpython(self) -> None:
        version = interpreters.version_of(shutil.which("pypy3") or "")
        assert version is not None
        assert version.startswith("pypy-3.")
        assert any(each.startswith(version) for each in interpreters.known())

    def test_another_implementation_is_none_of_that_version(self, tmp_path: Path) -> None:
        fake = tmp_path / "bin" / "python3.99"
        fake.parent.mkdir()
        fake.write_text("#!/bin/sh\nprintf pypy-3.99.1\n")
        fake.chmod(0o755)
        assert interpreters.version_of(str(fake)) == "pypy-3.99.1"
        assert interpreters.find("3.99", [str(fake)]) is None

    def test_what_cannot_be_run_is_passed_over(self, tmp_path: Path) -> None:
        for text in ("#!/bin/sh\nexit 127\n", "#!/nonexistent\n", "#!/bin/sh\necho nothing\n"):
            shim = tmp_path / "python3"
            shim.write_text(text)
            shim.chmod(0o755)
            assert interpreters.version_of(str(shim)) is None

    def test_a_patch_version_means_that_one(self) -> None:
        assert interpreters.matches("3.11.7", "3.11")
        assert interpreters.matches("3.11.7", "3.11.7")
        assert not interpreters.matches("3.11.70", "3.11.7")
        assert not interpreters.matches("3.1.1", "3.11")


def test_settings_that_mean_nothing_here_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "packages.json"
    here = tmp_path / "here"
    here.mkdir()
    brought = {
        "UV_FIND_LINKS": f"/nowhere/at/all,{here},https://example.test/links",
        "UV_INDEX": f"file:///nowhere/simple mine=file://{here} https://example.test/simple",
        "UV_DEFAULT_INDEX": "file:///nowhere/simple",
    }
    file.write_text(json.dumps(brought))
    assert uv.settings(file, {"HTTPS_PROXY": "http://p", "OTHER": "x"}) == {
        "UV_FIND_LINKS": f"{here},https://example.test/links",
        "UV_INDEX": f"mine=file://{here} https://example.test/simple",
        "HTTPS_PROXY": "http://p",
    }
    assert uv.settings(tmp_path / "none", {}) == {}


class TestTheWholeAgent:
    def test_workers_of_all_nodes_run_in_the_environment(self, tmp_path: Path, index: str) -> None:
        place = Place(tmp_path)
        call = {"kind": "command", "argv": SHOW}
        with RealGang(
            tmp_path / "g",
            call,
            python_spec=place.spec("probe-one"),
            environment={"UV_DEFAULT_INDEX": index},
        ) as gang:
            ended = gang.run()
            assert ended["outcome"] == "done", gang.logs()
            (path,) = place.made()
            for rank in range(4):
                assert gang.text(rank).split() == ["1.0", str(path)]
            gang.assert_nothing_left()

    def test_nodes_whose_environments_differ_do_not_start(
        self, tmp_path: Path, wheels: Path, index: str
    ) -> None:
        place = Place(tmp_path)
        old, new = place.spec("probe-one"), place.spec("probe-one", directory=str(tmp_path / "new"))
        with RealGang(
            tmp_path / "g",
            {"kind": "command", "argv": SHOW},
            shared=False,
            python_spec=old,
            environment={"UV_DEFAULT_INDEX": index},
        ) as gang:
            gang.start_agent(0)
            eventually(
                lambda: place.envs.exists() and any(map(environments.is_whole, place.made()))
            )
            make_wheel(wheels, "probe-one", "1.1")
            gang.configs[1].python_spec = new
            gang.paths[1].config.write_text(gang.configs[1].to_json())
            gang.start_agent(1)
            ended = asyncio.run(gang.finish())
            assert ended["outcome"] == "checks"
            assert (
                "node 1 (i-001) has probe-one 1.1 where node 0 (i-000) has 1.0" in ended["reason"]
            )
            assert "exact versions" in ended["reason"]
            gang.assert_nothing_left()

    def test_a_refusal_names_the_node_and_ends_the_gang(self, tmp_path: Path) -> None:
        place = Place(tmp_path)
        with RealGang(
            tmp_path / "g",
            {"kind": "command", "argv": SHOW},
            python_spec=place.spec("probe-one"),
            environment={"UV_NO_INDEX": "1"},
        ) as gang:
            ended = gang.run()
            assert ended["outcome"] != "done"
            assert "probe-one" in ended["reason"]
            assert "node" in ended["reason"]
            gang.assert_nothing_left()

    def test_all_that_makes_an_environment_ends_with_the_agent(self, tmp_path: Path) -> None:
        tool, child = tmp_path / "uv", tmp_path / "child"
        tool.write_text(
            f"#!/bin/sh\nsleep 600 & echo $! > {child}.new\nmv {child}.new {child}\nwait\n"
        )
        tool.chmod(0o755)
        with RealGang(
            tmp_path / "g",
            {"kind": "command", "argv": SHOW},
            python_spec=Place(tmp_path).spec("probe-one", uv=str(tool)),
        ) as gang:
            agent = gang.start_agent(0)
            eventually(child.exists)
            agent.terminate()
            agent.wait(60)
            assert not processes.is_alive(int(child.read_text()))

    def test_a_gang_that_is_cancelled_meanwhile_leaves_nothing(
        self, tmp_path: Path, wheels: Path
    ) -> None:
        asked, go_on = threading.Event(), threading.Event()

        def hold(name: str) -> None:
            asked.set()
            go_on.wait(90)

        place = Place(tmp_path)
        with (
            serve_index(wheels, on_file=hold) as address,
            RealGang(
                tmp_path / "g",
                {"kind": "command", "argv": SHOW},
                nodes=1,
                python_spec=place.spec("probe-one"),
                environment={"UV_DEFAULT_INDEX": address},
            ) as gang,
        ):
            agent = gang.start_agent(0)
            assert asked.wait(90)
            child = eventually(lambda: _uv_below(agent.pid))
            agent.send_signal(signal.SIGTERM)
            agent.wait(90)
            eventually(lambda: not processes.is_alive(child), what="uv ends with its agent")
            gang.assert_nothing_left()
            go_on.set()


def _uv_below(pid: int) -> int:
    """The process of uv below an agent; 0 while there is none."""
    for child in processes.descendants([pid]):
        command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
        if command[0].endswith(b"uv") and b"install" in command:
            return child
    return 0


if OTHERS:
    # A machine need not have a second CPython, and a test that is left out there is none that was skipped.

    @pytest.mark.parametrize("other", OTHERS)
    def test_another_minor_version_is_found_where_it_is(tmp_path: Path, other: str) -> None:
        place = Place(tmp_path)
        ready = place.ready(place.spec(None, python=other))
        assert interpreters.matches(interpreters.version_of(ready.python) or "", other)

    def test_an_environment_of_another_version(tmp_path: Path, index: str) -> None:
        place = Place(tmp_path, index)
        ready = place.ready(place.spec("probe-one", python=OTHERS[0]))
        assert interpreters.matches(interpreters.version_of(ready.python) or "", OTHERS[0])
        assert environments.packages_of(ready.python) == ["probe-one==1.0"]


def test_a_place_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(environments.PythonError, match=r"no locks .*node_dir") as found:
        asyncio.run(environments._wait_for(tmp_path / "envs" / "made"))
    assert str(tmp_path / "envs") in str(found.value)
