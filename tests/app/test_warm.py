"""`keep_warm`: the next task forks from what the last one imported, and finds nothing else of it."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite import Flow, FlowApp
from flowlite.api.session import open_session
from flowlite.node.forkserver import registry
from flowlite.node.system import processes, runtime_dir
from tests.helpers import assert_no_process_left, eventually, processes_of

pytestmark = [
    pytest.mark.both,
    pytest.mark.skipif(not processes.LINUX, reason="nothing is kept elsewhere"),
]
ROOT = str(Path(__file__).resolve().parent.parent.parent)


@pytest.fixture(autouse=True)
def home(flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sockets of its own: other tests keep templates, too, and there may be so many of a user."""
    (flow_home / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(flow_home / "tmp"))
    yield flow_home
    registry.end(templates())


@pytest.fixture
def app() -> FlowApp:
    return FlowApp(keep_warm="1m")


def templates() -> list[registry.WarmServer]:
    return registry.all_of(runtime_dir.find())


def lineage() -> Callable[[], tuple[int, int]]:
    """A function for a worker that gives its own pid and that of the template it was forked from."""

    def find() -> tuple[int, int]:
        import os

        with open(f"/proc/{os.getppid()}/stat") as file:
            return os.getpid(), int(file.read().rpartition(")")[2].split()[1])

    return find


def test_the_next_task_is_a_fresh_process_of_the_same_template(app: FlowApp) -> None:
    where = app.function(num_instances=2, processes_per_node=2)(lineage())
    first, second = where.spawn().results(), where.spawn().results()
    assert len({pid for pid, _ in first + second}) == 8
    assert {template for _, template in first + second} == {templates()[0].pid}
    assert len(templates()) == 1


def test_without_the_option_nothing_stays() -> None:
    where = FlowApp().function(lineage())
    assert where.remote() != where.remote()
    assert templates() == []


def test_the_command_line_and_the_settings_have_it_too(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.py").write_text(
        "from flowlite import FlowApp\n\n\n@FlowApp().function\ndef job() -> int:\n    return 7\n"
    )

    def run(*options: str) -> None:
        command = [sys.executable, "-m", "flowlite.cli", "run", *options, "job.py::job"]
        path = {**os.environ, "PYTHONPATH": ROOT}
        subprocess.run(command, cwd=tmp_path, env=path, check=True, capture_output=True)

    run()
    assert templates() == []
    run("--keep-warm", "90s")
    (one,) = templates()
    assert one.until is not None
    assert time.time() + 30 < one.until < time.time() + 95
    monkeypatch.setenv("FLOW_KEEP_WARM", "1m")
    run()
    assert [each.pid for each in templates()] == [one.pid]
    run("--keep-warm", "0")
    assert [each.pid for each in templates()] == [one.pid]


def test_two_programs_share_a_template_and_nothing_else(tmp_path: Path) -> None:
    """Each has a `__main__` of its own, with the same names in it."""
    program = """
from flowlite import FlowApp
app = FlowApp(keep_warm="1m")
WORD = {word!r}
if WORD == "first":
    ONLY_FIRST = 1

class Named:
    def __str__(self):
        return WORD

@app.function
def where(named):
    import os, sys
    main = sys.modules["__main__"]
    with open(f"/proc/{{os.getppid()}}/stat") as file:
        template = int(file.read().rpartition(")")[2].split()[1])
    return WORD, str(named), "ONLY_FIRST" in vars(main), os.path.basename(main.__file__), template

if __name__ == "__main__":
    import json
    print(json.dumps(where.remote(Named())))
"""
    said = []
    for word in ("first", "second"):
        path = tmp_path / f"{word}.py"
        path.write_text(program.format(word=word))
        run = subprocess.run(
            [sys.executable, path],
            env={**os.environ, "PYTHONPATH": ROOT},
            check=True,
            capture_output=True,
            text=True,
        )
        said.append(json.loads(run.stdout))
    (one,) = templates()
    assert said == [
        ["first", "first", True, "first.py", one.pid],
        ["second", "second", False, "second.py", one.pid],
    ]


class TestNothingOfOneTaskReachesTheNext:
    def test_whatever_it_changes(self, app: FlowApp, tmp_path: Path) -> None:
        @app.function
        def change() -> int:
            import atexit
            import builtins
            import json
            import os
            import random
            import signal
            import sys
            import threading

            os.environ["LEAKED"] = "1"
            sys.path.insert(0, "/leaked")
            sys.modules["leaked"] = json
            json.leaked = "leaked"  # type: ignore[attr-defined]
            builtins.leaked = 1  # type: ignore[attr-defined]
            random.seed(1)
            os.chdir("/")
            os.umask(0o077)
            signal.signal(signal.SIGUSR1, lambda *_: None)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            atexit.register(print, "leaked")
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            os.open("/dev/null", os.O_RDONLY)
            sys.setrecursionlimit(333)
            return os.umask(0o077)

        @app.function
        def look() -> dict[str, Any]:
            import builtins
            import json
            import os
            import signal
            import sys
            import threading

            return {
                "environment": os.environ.get("LEAKED"),
                "path": "/leaked" in sys.path,
                "module": "leaked" in sys.modules,
                "patched": hasattr(json, "leaked"),
                "builtin": hasattr(builtins, "leaked"),
                "directory": os.getcwd(),
                "umask": os.umask(0o022),
                "handlers": [
                    str(signal.getsignal(each)) for each in (signal.SIGUSR1, signal.SIGTERM)
                ],
                "threads": threading.active_count(),
                "limit": sys.getrecursionlimit(),
            }

        before = look.remote()
        (one,) = templates()
        change.remote()
        assert look.remote() == before
        assert (before["patched"], before["limit"]) == (False, 1000)
        assert [each.pid for each in templates()] == [one.pid]
        assert "leaked" not in Path(f"{one.socket}.log").read_text()

    def test_torchs_seed_threads_and_process_group(self, app: FlowApp) -> None:
        pytest.importorskip("torch")

        @app.function(processes_per_node=2)
        def look(change: bool) -> tuple[float, tuple[int, bool, str]]:
            import torch
            import torch.distributed as dist

            drawn = torch.rand(1).item()
            found = (
                torch.get_num_threads(),
                dist.is_initialized(),
                str(torch.get_default_dtype()),
            )
            if change:
                torch.manual_seed(7)
                torch.set_num_threads(5)
                torch.set_default_dtype(torch.float64)
                dist.init_process_group("gloo")
            return drawn, found

        seen = [*look.spawn(True).results(), *look.spawn(False).results()]
        # Without a seed, every rank of every run draws numbers of its own.
        assert len({drawn for drawn, _ in seen}) == 4
        assert len({found for _, found in seen}) == 1
        assert len(templates()) == 1

    def test_not_even_when_it_is_killed(self, app: FlowApp) -> None:
        where = app.function(lineage())

        @app.function
        def die() -> None:
            import os
            import signal
            import subprocess

            subprocess.Popen(["sleep", "600"], start_new_session=True)
            os.kill(os.getpid(), signal.SIGKILL)

        _, before = where.remote()
        task = die.spawn()
        assert task.exception() is not None
        assert where.remote()[1] == before
        assert processes_of(task.id) == []


class TestWhatHasChangedIsTaken:
    def test_the_function(self, app: FlowApp) -> None:
        def version(number: int) -> Any:
            return app.function(lambda: number)

        assert [version(n).remote() for n in (1, 2)] == [1, 2]
        assert len(templates()) == 1

    def test_a_module_of_the_project(
        self, app: FlowApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        module = tmp_path / "flowlite_project_part.py"
        monkeypatch.syspath_prepend(str(tmp_path))

        def call(value: int) -> int:
            module.write_text(f"VALUE = {value}\n\n\ndef value():\n    return VALUE\n")
            importlib.invalidate_caches()
            sys.modules.pop("flowlite_project_part", None)
            part = importlib.import_module("flowlite_project_part")
            return int(app.function(part.value).remote())

        assert [call(1), call(22), call(333)] == [1, 22, 333]
        assert len(templates()) == 1

    def test_another_environment_is_another_template(self, app: FlowApp) -> None:
        @app.function
        def seen() -> str | None:
            import os

            return os.environ.get("FLAVOUR")

        assert seen.options(environment={"FLAVOUR": "a"}).remote() == "a"
        assert seen.options(environment={"FLAVOUR": "b"}).remote() == "b"
        assert seen.remote() is None
        assert len(templates()) == 3

    def test_a_variable_of_this_process_is(
        self, app: FlowApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @app.function
        def seen() -> str | None:
            import os

            return os.environ.get("FLAVOUR")

        assert seen.remote() is None
        monkeypatch.setenv("FLAVOUR", "c")
        assert seen.remote() == "c"


def test_two_tasks_at_a_time_do_not_meet(app: FlowApp, tmp_path: Path) -> None:
    @app.function(num_instances=2)
    def meet(mine: str, other: str) -> tuple[str, str]:
        import os
        import time
        from pathlib import Path

        Path(mine + os.environ["RANK"]).touch()
        while not Path(other + os.environ["RANK"]).exists():
            time.sleep(0.01)
        hosts = Path("/etc/hosts")
        # A minimal system has none.
        text = hosts.read_text() if hosts.exists() else ""
        return os.environ["FLOW_TASK_ID"], text.count("flow-node-0")

    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    one, two = meet.spawn(a, b), meet.spawn(b, a)
    (first, names), (second, _) = one.result(), two.result()
    assert (first, second) == (one.id, two.id)
    assert names in (0, 1)
    assert len(templates()) == 1


def test_a_template_killed_while_nobody_uses_it_is_replaced(app: FlowApp) -> None:
    where = app.function(lineage())
    _, before = where.remote()
    os.kill(before, signal.SIGKILL)
    _, after = where.remote()
    assert after != before


def test_a_template_killed_under_a_task_does_not_end_it(app: FlowApp, tmp_path: Path) -> None:
    @app.function
    def wait(flag: str) -> str:
        import os
        import time
        from pathlib import Path

        Path(flag, "up").write_text(str(os.getpid()))
        while not Path(flag, "go").exists():
            time.sleep(0.01)
        return "done"

    task = wait.spawn(str(tmp_path))
    eventually(lambda: (tmp_path / "up").exists())
    os.kill(templates()[0].pid, signal.SIGKILL)
    (tmp_path / "go").touch()
    assert task.result() == "done"
    # Nothing is kept for another task, so its supervisor ends, too, once it has told of the end.
    assert_no_process_left(task.id)


def test_a_secret_is_not_left_behind(
    app: FlowApp, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cret-value")

    @app.function(secrets=["API_TOKEN"])
    def use() -> str:
        import os

        return os.environ["API_TOKEN"]

    assert use.remote() == "s3cret-value"
    (one,) = templates()
    assert b"s3cret-value" not in Path(f"/proc/{one.pid}/environ").read_bytes()
    for each in Path(one.socket).parent.iterdir():
        assert each.is_socket() or b"s3cret-value" not in each.read_bytes()


class TestWhatIsSeenOfThem:
    def test_status_shows_them_and_gc_ends_them(self, app: FlowApp) -> None:
        app.function(num_instances=2)(lambda: 1).remote()
        shown = flow("status")
        assert "2 nodes are kept warm (local) until" in shown
        assert "$0.00 per hour; `flow gc --warm` ends them now" in shown
        (told,) = json.loads(flow("status", "--json"))["data"]
        assert told["warm_nodes"] == 2
        assert told["warm_until"] is not None
        assert flow("gc") == "nothing to do\n"
        pid = templates()[0].pid
        assert flow("gc", "--warm", "--dry-run").count("would be ended") == 2
        assert processes.is_alive(pid)
        assert flow("gc", "--warm").count("ended") == 2
        assert not processes.is_alive(pid)
        assert "warm" not in flow("status")

    def test_what_is_gone_is_not_shown(self, app: FlowApp) -> None:
        where = app.function(lineage())
        _, template = where.remote()
        assert len(Flow().warm_nodes()) == 1
        os.kill(template, signal.SIGKILL)
        eventually(lambda: not processes.is_alive(template))
        assert Flow().warm_nodes() == []

    def test_the_next_task_takes_them_over(self) -> None:
        # As many threads for each process, whatever the shape of the gang.
        app = FlowApp(keep_warm="1m", environment={"OMP_NUM_THREADS": "1"})
        one = app.function(num_instances=2)(lambda: 1).spawn().wait()
        two = app.function(num_instances=1)(lambda: 2).spawn().wait()
        assert [node.state for node in one.nodes].count("ended") == 1
        assert [node.state for node in two.nodes] == ["warm"]
        assert len(Flow().warm_nodes()) == 2

    def test_a_task_that_failed_keeps_them_and_says_so(self, app: FlowApp) -> None:
        def fail() -> None:
            raise ValueError("a mistake")

        task = app.function(fail).spawn().wait()
        assert task.status == "failed"
        assert [node.state for node in task.nodes] == ["warm"]
        assert any(event.text.startswith("1 node is kept warm until") for event in task.events())

    def test_they_cost_what_they_cost_until_somebody_goes_on_with_them(
        self, app: FlowApp, home: Path
    ) -> None:
        (home / "config.toml").write_text("[providers.local]\nprice_per_hour = 3600.0\n")
        job = app.function(lambda: 1).options(max_cost=100.0)
        one = job.spawn().wait()
        assert one.cost_per_hour == 3600.0
        before = one.estimated_cost
        eventually(lambda: one.estimated_cost > before + 0.2)
        two = job.spawn().wait()
        assert one.cost_per_hour == 0.0
        at_the_end = one.estimated_cost
        assert two.cost_per_hour == 3600.0
        time.sleep(0.05)
        assert one.estimated_cost == at_the_end
        assert [node.state for node in one.nodes] == ["ended"]

    def test_the_cap_ends_them_before_their_time(self, app: FlowApp, home: Path) -> None:
        (home / "config.toml").write_text("[providers.local]\nprice_per_hour = 3600.0\n")
        task = app.function(lambda: 1).options(max_cost=20.0).spawn().wait()
        (row,) = open_session().store.instances(task.id)
        assert row.ended_at is not None
        cost = row.price_per_hour * (row.ended_at - row.launched_at) / 3600
        assert cost == pytest.approx(20.0, abs=0.5)

    def test_who_cancels_a_paid_task_gives_its_nodes_back(self, app: FlowApp, home: Path) -> None:
        (home / "config.toml").write_text("[providers.local]\nprice_per_hour = 1.0\n")

        def sleep() -> None:
            import time

            time.sleep(600)

        task = app.function(sleep).spawn()
        eventually(lambda: task.status == "running")
        task.cancel()
        task.wait()
        assert [node.state for node in task.nodes] == ["ended"]
        assert Flow().warm_nodes() == []


def test_what_cannot_be_kept_is_said_at_submission(
    app: FlowApp, capfd: pytest.CaptureFixture[str]
) -> None:
    app.function(start="spawn")(lambda: 1).remote()
    assert "keep_warm has no effect: workers that are spawned" in capfd.readouterr().err
    assert templates() == []


@pytest.mark.parametrize("kept", [False, True])
def test_imports_ahead_look_for_programs_where_ranks_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """Ranks have the directory of their Python first in PATH, also where its environment is not activated."""
    packages, noted = tmp_path / "site-packages", tmp_path / "imported"
    packages.mkdir()
    (packages / "looks_for_a_program.py").write_text(
        f"import os, shutil\nFOUND = shutil.which('sh')\nopen({str(noted)!r}, 'a').write('x')\n"
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    path = [str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", ":".join(path))
    monkeypatch.syspath_prepend(packages)

    @FlowApp().function(processes_per_node=2, keep_warm="1m" if kept else None)
    def find() -> Any:
        import looks_for_a_program  # type: ignore[import-not-found]

        return looks_for_a_program.FOUND

    assert len(set(find.spawn().results())) == 1
    assert noted.read_text() == "x"


def flow(*arguments: str) -> str:
    command = [sys.executable, "-m", "flowlite.cli", *arguments]
    path = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(command, env=path, check=True, capture_output=True, text=True)
    return done.stdout
