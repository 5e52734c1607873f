"""Which processes of a node are its ranks, below whatever started them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite.node.config.agent_config import AgentConfig
from flowlite.node.inspect import metrics, rank_processes
from flowlite.node.inspect.rank_processes import RankProcess
from flowlite.node.system import processes
from tests.helpers import eventually

PROGRAM = "import time; print('up', flush=True); time.sleep(600)"
# A program that starts others, each with variables of its own, and waits for them.
LAUNCHER = """
import json, os, subprocess, sys
told = json.loads(sys.argv[1])
started = [subprocess.Popen([sys.executable, "-c", sys.argv[2]], env={**os.environ, **each}) for each in told]
started[0].wait()
"""
# A program that starts a Python of its own, as a DataLoader does, and waits.
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {PROGRAM!r}])"
MANUAL = {"NODE_RANK": "0"}
RANK_0 = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", **MANUAL}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a worker with these variables and its note, and waits until so many of its processes are up."""
    workers = []

    def run(argv: list[str], variables: dict[str, str], up: int = 1) -> subprocess.Popen[bytes]:
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("RANK", "OMPI_", "PMI"))}
        worker = subprocess.Popen(
            argv, env={**kept, **variables}, stdout=subprocess.PIPE, start_new_session=True
        )
        workers.append(worker)
        assert worker.stdout is not None
        for _ in range(up):
            assert worker.stdout.readline() == b"up\n"
        note = {"rank": 0, "signal": None, **processes.identity(worker.pid)}
        (tmp_path / "r0.pid").write_text(json.dumps(note))
        return worker

    yield run
    for worker in workers:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.communicate()


def ranks(attempt: Path, entry: dict[str, Any] | None = None, **config: Any) -> list[RankProcess]:
    call = {"kind": "command", "argv": ["true"]}
    fields = {"instance": "a", "roster": ["a", "b"], "processes_per_node": 1, "call": call}
    return rank_processes.of_node(
        str(attempt),
        entry or {},
        AgentConfig(task="t", name="t", attempt=1, **{**fields, **config}),
    )


def launcher(*told: dict[str, str], program: str = PROGRAM) -> list[str]:
    return [sys.executable, "-c", LAUNCHER, json.dumps(told), program]


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        (MANUAL, [{**RANK_0, "TORCHELASTIC_RUN_ID": "x"}]),
        (RANK_0, [{**RANK_0, "TORCHELASTIC_RUN_ID": "x"}]),
        (MANUAL, [{**RANK_0, "RANK": "4"}, {**RANK_0, "RANK": "5"}]),
        (MANUAL, [{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
                   "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}]),
    ],
    ids=["one", "one with the rank of its launcher", "two", "MPI"],
)  # fmt: skip
def test_what_a_launcher_started_are_the_ranks(
    start: Callable[..., subprocess.Popen[bytes]],
    tmp_path: Path,
    variables: dict[str, str],
    told: list[dict[str, str]],
) -> None:
    worker = start(launcher(*told), variables, up=len(told))
    found = ranks(tmp_path)

    expected = [int(each.get("RANK") or each["OMPI_COMM_WORLD_RANK"]) for each in told]
    assert [each.rank for each in found] == expected
    assert {each.pid for each in found} == processes.descendants([worker.pid])
    assert all(told[at].items() <= each.environment.items() for at, each in enumerate(found))


def test_the_python_below_a_shell_is_the_rank(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    worker = start(["sh", "-c", 'SEED=7 "$0" -c "$1"; true', sys.executable, PROGRAM], RANK_0)
    (found,) = ranks(tmp_path)

    assert {found.pid} == processes.descendants([worker.pid])
    assert (found.rank, found.environment["SEED"]) == (0, "7")


def test_children_of_a_rank_are_not_ranks(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    worker = start([sys.executable, "-c", PARENT], RANK_0)
    assert [(each.rank, each.pid) for each in ranks(tmp_path)] == [(0, worker.pid)]


def test_children_of_a_launchers_rank_are_not_ranks(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    worker = start(launcher(RANK_0, program=PARENT), MANUAL)
    (found,) = ranks(tmp_path)
    assert processes.row(found.pid).parent == worker.pid  # type: ignore[union-attr]


def test_a_worker_without_a_python_stands_for_its_rank(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    worker = start(["sh", "-c", "echo up; sleep 600; true"], RANK_0)
    assert [(each.rank, each.pid) for each in ranks(tmp_path)] == [(0, worker.pid)]


def test_a_forked_worker_has_the_environment_that_flowlite_gave_it(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    # The fork server of a task that sets MASTER_PORT in environment= has it, too.
    worker = start([sys.executable, "-c", PROGRAM], {"MASTER_PORT": "29500"})
    note = {"rank": 1, "signal": 39, **processes.identity(worker.pid)}
    (tmp_path / "r0.pid").write_text(json.dumps(note))
    (found,) = ranks(tmp_path, {"environment": {**RANK_0, "SEED": "7"}})

    assert (found.rank, found.pid, found.note is not None) == (1, worker.pid, True)
    assert (found.environment["RANK"], found.environment["SEED"]) == ("1", "7")


def test_the_program_that_serves_node_0_is_no_rank_but_what_it_started_is(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The daemon of `mpirun` is no descendant of the worker; the node's reaper has adopted it."""
    daemon = start(launcher({**RANK_0, "RANK": "2"}), MANUAL)
    start([sys.executable, "-c", PROGRAM], MANUAL)
    entry = {"reaper": processes.identity(os.getpid())}
    other = {"mode": "mpi", "instance": "b"}
    found = ranks(tmp_path, entry, **other)

    assert [each.rank for each in found] == [2]
    assert {found[0].pid} == processes.descendants([daemon.pid])
    # `flow top` adds its processor time and memory to those of the workers.
    counted = metrics.workers_of(str(tmp_path), found)
    assert [each["pid"] for each in counted][1:] == [found[0].pid]

    os.killpg(daemon.pid, signal.SIGKILL)
    daemon.wait()
    eventually(lambda: ranks(tmp_path, entry, **other) == [], what="no rank is left")
