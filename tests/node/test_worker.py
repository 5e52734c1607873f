"""Function workers from within: streams, random numbers, exits, exceptions, and the ways not to come back."""

from __future__ import annotations

import asyncio
import functools
import gzip
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.bundle.call import build_bundle
from flowlite.node.config.agent_config import AttemptPaths
from flowlite.node.forkserver import client
from flowlite.node.forkserver.worker_group import Workers
from flowlite.node.serialization.result_file import OutcomeFile, read_outcome
from flowlite.node.worker import renewed_modules, worker
from tests.helpers import assert_no_process_left, kill_processes_of

TASK = f"t-worker-{os.getpid()}"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    try:
        assert_no_process_left(TASK)
    finally:
        kill_processes_of(TASK)


class Ran:
    """What became of one call."""

    def __init__(self, directory: Path, rank: int, body: dict[str, Any]) -> None:
        self.body = body
        self.code, self.signal, self.failure = body["code"], body["signal"], body["failure"]
        self.written, self.complained = (
            (directory / f"r{rank}.{stream}").read_bytes() for stream in ("out", "err")
        )
        self._result = directory / f"r{rank}.result"

    @property
    def out(self) -> str:
        return self.written.decode()

    @property
    def err(self) -> str:
        return self.complained.decode()

    @property
    def outcome(self) -> OutcomeFile:
        return read_outcome(self._result, allow_pickle=True)

    @property
    def value(self) -> Any:
        assert self.failure is None, (self.failure, self.err)
        return self.outcome.value


def run_calls(
    directory: Path,
    *functions: Callable[[], Any],
    start: str = "auto",
    imports: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    changed: dict[str, Any] | None = None,
) -> list[Ran]:
    """Run each function as one rank of a node."""
    reports: dict[int, dict[str, Any]] = {}
    calls = []
    for rank, function in enumerate(functions):
        home = directory / f"bundle{rank}"
        home.mkdir(parents=True)
        calls.append(
            {
                **build_bundle(function, (), {}, directory=home).call_config(str(home)),
                "start": start,
                **(changed or {}),
            }
        )
    spec = client.make_spec(
        task=TASK,
        socket=client.socket_path(f"{TASK}/{directory}"),
        python=sys.executable,
        log=str(directory / "warm.log"),
        imports=imports,
        function=start != "spawn",
        idle=0.0,
    )
    workers = Workers(
        spec,
        AttemptPaths(directory),
        node=0,
        task=TASK,
        attempt=1,
        stop_signal=signal.SIGTERM,
        grace=1.0,
        report=lambda body: reports.update({body["rank"]: body}),
    )
    kept = {**os.environ, "FLOW_TASK_ID": TASK, "FLOW_NODE_RANK": "0", **(environment or {})}

    async def all_of_it() -> None:
        async with asyncio.timeout(60):
            await workers.connect()
            try:
                workers.start(
                    [
                        {
                            "rank": rank,
                            "local_rank": rank,
                            "node": 0,
                            "name": "test",
                            "environment": {**kept, "RANK": str(rank)},
                            "workdir": str(directory),
                            "call": call,
                            **{
                                each: str(directory / f"r{rank}.{each}")
                                for each in ("out", "err", "result", "failure")
                            },
                        }
                        for rank, call in enumerate(calls)
                    ]
                )
                await workers.wait()
            finally:
                await workers.close()

    asyncio.run(all_of_it())
    return [Ran(directory, rank, reports[rank]) for rank in range(len(functions))]


# What runs in the workers. Nested functions travel by value.


def look_around() -> Callable[[], Any]:
    def look() -> dict[str, Any]:
        import faulthandler
        import random

        import numpy

        return {
            "rank": os.environ["RANK"],
            "pid": os.getpid(),
            "parent": os.getppid(),
            "cwd": os.getcwd(),
            "argv": sys.argv,
            "main": sys.modules["__main__"].__dict__.get("__file__"),
            "stdin": sys.stdin.read(),
            "random": random.random(),
            "numpy": float(numpy.random.rand()),
            "faulthandler": faulthandler.is_enabled(),
            "task": os.environ.get("FLOW_TASK_ID"),
            "gone": "SLURM_PROCID" in os.environ,
            "imported": "colorsys" in sys.modules,
        }

    return look


@pytest.mark.parametrize("start", ["auto", "spawn"])
def test_where_a_function_finds_itself(tmp_path: Path, start: str) -> None:
    first, second = (
        each.value
        for each in run_calls(
            tmp_path, look_around(), look_around(), start=start, imports=("colorsys", "numpy")
        )
    )
    assert (first["rank"], second["rank"]) == ("0", "1")
    assert first["pid"] != second["pid"]
    assert first["cwd"] == str(tmp_path)
    assert first["argv"] == ["test"]
    assert first["main"] is None
    assert first["stdin"] == ""
    assert first["faulthandler"]
    assert first["task"] == TASK
    assert first["imported"] == (start == "auto")
    # Forked from one process, and yet with random numbers of their own.
    assert first["random"] != second["random"]
    assert first["numpy"] != second["numpy"]


def look_at_what_was_imported() -> Callable[[], Any]:
    def look() -> Any:
        import multiprocessing.process

        import read_at_import  # type: ignore[import-not-found]

        return (
            read_at_import.SEEN,
            multiprocessing.process.ORIGINAL_DIR,
            bytes(multiprocessing.current_process().authkey),
        )

    return look


@pytest.mark.parametrize(
    ("source", "forked"),
    [
        ("SEEN = os.environ.get('RANK')", False),
        ("SEEN = {**os.environ}['RANK']", False),
        ("SEEN = (os.getcwd(), os.environ['RANK'])[1]", False),
        ("SEEN = os.environ.get('HOME') and None", True),
    ],
)
def test_a_module_is_imported_by_each_worker_if_it_reads_what_only_workers_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, forked: bool
) -> None:
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "read_at_import.py").write_text(
        f"import os\nopen({str(tmp_path / 'imported')!r}, 'a').write('x')\n{source}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(modules))
    look = look_at_what_was_imported()
    first, second = (
        each.value
        for each in run_calls(
            tmp_path, look, look, imports=("read_at_import", "multiprocessing.process")
        )
    )
    ranks = (None, None) if forked else ("0", "1")
    assert (first[0], second[0]) == ranks
    assert (tmp_path / "imported").read_text() == ("x" if forked else "xxx")
    assert first[1] == second[1] == str(tmp_path)
    assert first[2] != second[2]


class CountingFinder:
    """A finder of an archive that notes how often its table of contents would be read."""

    def __init__(self, archive: Path) -> None:
        self.archive = str(archive)
        self.read = 0

    def invalidate_caches(self) -> None:
        self.read += 1


def test_a_worker_reads_other_archives_anew_but_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = CountingFinder(tmp_path / "agent.pyz"), CountingFinder(tmp_path / "user.zip")
    monkeypatch.setattr(renewed_modules, "__loader__", own)
    for finder in (own, other):
        monkeypatch.setitem(sys.path_importer_cache, f"{finder.archive}/package", finder)
    renewed_modules.look_anew_at_directories()
    assert (own.read, other.read) == (0, 1)
    assert sys.path_importer_cache[f"{own.archive}/package"] is own


def test_a_worker_finds_modules_that_appeared_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("appeared_since") is None
    times = os.stat(tmp_path)
    (tmp_path / "appeared_since.py").write_text("")
    # The directory looks as it did before, as on a file system with coarse times.
    os.utime(tmp_path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert importlib.util.find_spec("appeared_since") is None
    renewed_modules.look_anew_at_directories()
    assert importlib.util.find_spec("appeared_since") is not None


def test_nothing_printed_is_lost_when_a_worker_is_killed(tmp_path: Path) -> None:
    def killed() -> None:
        print("a line")
        print("half a line", end="")
        sys.stdout.write("\rprogress")
        sys.stderr.write("and this")
        os.kill(os.getpid(), signal.SIGKILL)

    (ran,) = run_calls(tmp_path, killed)
    assert ran.signal == signal.SIGKILL
    assert ran.out == "a line\nhalf a line\rprogress"
    assert ran.err == "and this"


def test_c_libraries_and_children_write_to_the_same_files(tmp_path: Path) -> None:
    def prints() -> None:
        import ctypes
        import subprocess

        library = ctypes.CDLL(None)
        library.printf(b"from C\n")
        print("from Python")
        subprocess.run(["sh", "-c", "echo from a child"], check=True)
        library.printf(b"unfinished")

    (ran,) = run_calls(tmp_path, prints)
    assert ran.code == 0
    assert ran.out == "from C\nfrom Python\nfrom a child\nunfinished"


def test_files_that_are_left_open_are_written_out(tmp_path: Path) -> None:
    def leaves_open(directory: str) -> None:
        import gzip

        # What Python closes only when it takes its modules apart: a module holds it, or a circle.
        files = [
            open(f"{directory}/text.csv", "w"),  # noqa: SIM115
            open(f"{directory}/bytes", "wb"),  # noqa: SIM115
            gzip.open(f"{directory}/text.gz", "wt"),  # noqa: SIM115
        ]
        files[0].write("epoch,loss\n")
        files[1].write(b"bytes")
        files[2].write("compressed")
        sys.modules["main_of_a_user"] = files  # type: ignore[assignment]

    (ran,) = run_calls(tmp_path, functools.partial(leaves_open, str(tmp_path)))
    assert ran.code == 0
    assert (tmp_path / "text.csv").read_text() == "epoch,loss\n"
    assert (tmp_path / "bytes").read_bytes() == b"bytes"
    assert gzip.decompress((tmp_path / "text.gz").read_bytes()) == b"compressed"


def test_text_and_bytes_that_are_no_utf8_harm_nobody(tmp_path: Path) -> None:
    def prints() -> None:
        print("\u00e9 \udcff")
        sys.stdout.buffer.write(b"\xff raw\n")

    (ran,) = run_calls(tmp_path, prints)
    assert ran.code == 0
    assert ran.written == b"\xc3\xa9 \\udcff\n\xff raw\n"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    def returns() -> int:
        import atexit
        import threading
        import time

        atexit.register(print, "at exit")
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        return 7

    def raises() -> None:
        raise ValueError("no such layer")

    def raises_late() -> None:
        import atexit

        atexit.register(print, "at exit")
        raise KeyError("k")

    def exits_well() -> None:
        sys.exit()

    def exits() -> None:
        sys.exit(42)

    def exits_with_no_byte() -> None:
        sys.exit(256)

    def exits_with_text() -> None:
        sys.exit("bad config")

    def vanishes() -> None:
        os._exit(0)

    def interrupted() -> None:
        raise KeyboardInterrupt

    def returns_a_lock() -> Any:
        import threading

        return threading.Lock()

    def aborts() -> None:
        import ctypes

        ctypes.string_at(0)

    def has_a_child_that_aborts() -> str:
        import ctypes

        pid = os.fork()
        if pid == 0:
            ctypes.string_at(0)
        os.waitpid(pid, 0)
        return Path(f"/proc/{os.getpid()}/fd/2").read_text()

    def has_children_that_end_after_it() -> str:
        import atexit
        import sys

        def waits(pid: int) -> None:
            print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        for ends in ("returns", "exits", "raises", "exits with text"):
            gone, ended = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(ended)
                # Until the function's own outcome has been written.
                os.read(gone, 1)
                atexit._clear()
                if ends == "exits":
                    sys.exit(3)
                if ends == "raises":
                    raise LookupError("in a child")
                if ends == "exits with text":
                    sys.exit("text")
                return "of a child"
            os.close(gone)
            atexit.register(waits, pid)
            atexit.register(os.close, ended)
        return "of the rank"

    chosen = {each.__name__: each for each in list(locals().values()) if callable(each)}
    ran = run_calls(tmp_path_factory.mktemp("ends"), *chosen.values())
    return dict(zip(chosen, ran, strict=True))


class TestEnds:
    def test_a_value_after_threads_and_exit_handlers(self, ended: dict[str, Ran]) -> None:
        assert ended["returns"].code == 0
        assert ended["returns"].value == 7
        assert ended["returns"].out == "thread\nat exit\n"

    def test_an_exception(self, ended: dict[str, Ran]) -> None:
        ran = ended["raises"]
        assert (ran.code, ran.signal) == (1, None)
        assert ran.failure == {
            "kind": "exception",
            "type": "ValueError",
            "message": "no such layer",
        }
        assert ran.err.startswith("Traceback (most recent call last):\n")
        assert ran.err.endswith("ValueError: no such layer\n")
        assert "flowlite" not in ran.err.replace(str(Path(__file__)), "")
        assert ran.body["tail"][-1] == "ValueError: no such layer"
        assert isinstance(ran.outcome.exception, ValueError)
        assert ended["raises_late"].out == "at exit\n"

    def test_sys_exit_is_the_exit_code(self, ended: dict[str, Ran]) -> None:
        assert ended["exits_well"].code == 0
        assert ended["exits_well"].value is None
        assert ended["exits"].code == 42
        assert ended["exits"].failure == {"kind": "exit", "type": "", "message": "exited with 42"}
        assert ended["exits_with_no_byte"].code == 0
        assert ended["exits_with_no_byte"].value is None
        assert ended["exits_with_text"].code == 1
        assert ended["exits_with_text"].failure["message"] == "bad config"
        assert ended["exits_with_text"].err == "bad config\n"

    def test_an_end_without_a_result_is_no_success(self, ended: dict[str, Ran]) -> None:
        assert ended["vanishes"].code == 0
        assert ended["vanishes"].failure["kind"] == "result"
        assert "without handing over a result" in ended["vanishes"].failure["message"]

    def test_an_interrupt(self, ended: dict[str, Ran]) -> None:
        assert ended["interrupted"].failure["type"] == "KeyboardInterrupt"
        assert ended["interrupted"].code == 1

    def test_a_result_that_cannot_travel(self, ended: dict[str, Ran]) -> None:
        assert ended["returns_a_lock"].failure["kind"] == "result"
        assert "lock" in ended["returns_a_lock"].failure["message"]
        assert ended["returns_a_lock"].code == 1

    def test_a_crash_leaves_a_stack(self, ended: dict[str, Ran]) -> None:
        assert ended["aborts"].signal == signal.SIGSEGV
        assert "Segmentation fault" in ended["aborts"].err
        assert ended["aborts"].err.rstrip().splitlines()[-1].endswith("in aborts")

    def test_a_child_process_of_the_function_hands_over_no_result(
        self, ended: dict[str, Ran]
    ) -> None:
        ran = ended["has_children_that_end_after_it"]
        assert ran.value == "of the rank"
        assert sorted(ran.out.splitlines()) == ["child 0", "child 1", "child 1", "child 3"]
        assert "LookupError: in a child\n" in ran.err
        assert "text\n" in ran.err
        assert "flowlite" not in ran.err.replace(str(Path(__file__)), "")

    def test_a_crash_of_a_child_process_is_told_at_once(self, ended: dict[str, Ran]) -> None:
        assert "Segmentation fault" in ended["has_a_child_that_aborts"].value


def test_a_failure_is_known_although_a_thread_is_waited_for(tmp_path: Path) -> None:
    def fails_with_a_thread() -> None:
        import faulthandler
        import threading
        import time

        # The limit is ten seconds; no test waits so long.
        real = faulthandler.dump_traceback_later
        faulthandler.dump_traceback_later = lambda _, **options: real(0.3, **options)
        threading.Thread(target=time.sleep, args=(60,)).start()
        raise ValueError("first")

    assert worker.FAILED_EXIT_SECONDS == 10
    (ran,) = run_calls(tmp_path, fails_with_a_thread)
    assert ran.code == 1
    assert ran.failure["message"] == "first"
    assert "Timeout" in ran.err


def test_a_hook_for_uncaught_exceptions_is_called(tmp_path: Path) -> None:
    """wandb, comet and Sentry set one. Without it, wandb takes its run for one that ended well."""

    def has_a_hook() -> None:
        import atexit
        import traceback

        def hook(kind: Any, error: Any, trace: Any) -> None:
            frames = [each.name for each in traceback.extract_tb(trace)]
            print(kind.__name__, error, frames)

        sys.excepthook = hook
        atexit.register(lambda: print("at exit:", repr(sys.last_value)))
        raise ValueError("nan")

    def has_a_broken_hook() -> None:
        sys.excepthook = lambda *_: print(1 // 0)
        raise ValueError("nan")

    called, broken = run_calls(tmp_path, has_a_hook, has_a_broken_hook)
    assert called.out == "ValueError nan ['has_a_hook']\nat exit: ValueError('nan')\n"
    assert called.err == ""
    assert broken.err.startswith("Error in sys.excepthook:\nTraceback")
    assert broken.err.endswith("ValueError: nan\n")
    for ran in (called, broken):
        assert (ran.code, ran.failure["type"]) == (1, "ValueError")


def test_a_bundle_that_was_exchanged_is_not_run(tmp_path: Path) -> None:
    def touches() -> None:
        Path("ran").touch()

    (ran,) = run_calls(tmp_path, touches, changed={"sha256": "0" * 64})
    assert ran.failure["kind"] == "load"
    assert ran.code == 1
    assert not (tmp_path / "ran").exists()


def _trains() -> dict[str, Any]:
    import torch

    model = torch.nn.Linear(64, 64)
    model(torch.randn(8, 64)).sum().backward()
    return {
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_initialized(),
        "parent": os.getppid(),
    }


def _meets() -> dict[str, Any]:
    import weakref

    import torch.distributed as dist
    from torch.distributed import destroy_process_group

    def once(number: int) -> Any:
        store = dist.FileStore(f"store{number}", 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        group = weakref.ref(dist.group.WORLD)
        dist.all_gather_object([None], "me")
        destroy_process_group()
        return group

    groups = [once(each) for each in range(2)]
    return {
        "alive": [group() is not None for group in groups],
        "initialized": dist.is_initialized(),
    }


@pytest.mark.parametrize("start", ["auto", pytest.param("spawn", marks=pytest.mark.slow)])
def test_torch_in_workers(tmp_path: Path, start: str) -> None:
    pytest.importorskip("torch")
    trained, again, met = (
        each.value
        for each in run_calls(
            tmp_path,
            *(_trains, _trains, _meets),
            start=start,
            imports=("torch", "torch.distributed"),
            environment={"OMP_NUM_THREADS": "1"},
        )
    )
    assert trained["threads"] == again["threads"] == 1
    assert not trained["cuda"]
    assert trained["parent"] == again["parent"]
    # Destroyed groups are kept to the end: torch 2.13 hangs in half of the runs that destruct one here.
    assert met == {"alive": [True, True], "initialized": False}
