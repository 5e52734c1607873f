"""`distributed_mode="mpi"` with Open MPI and mpi4py, as they are, on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gangs import Gang, submit
from tests.helpers import eventually, process_alive, processes_of
from tests.stacks.mpi_programs import ADD, ADDED, BARE, MEET, python

SECONDS = 120.0
WAITING = """
import os, time
os.write(1, f"{os.getpid()}\\n".encode())
while not os.path.exists(os.environ["FLOW_HOME"] + "/go"):
    time.sleep(0.05)
"""
HANGS = """
from flowlite import FlowApp

app = FlowApp()


@app.function(num_instances=2, processes_per_node=2, distributed_mode="mpi")
def hang() -> None:
    import time
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    if world.rank == 3:
        time.sleep(600)
    world.Barrier()


if __name__ == "__main__":
    hang.local()
"""
FUNCTION = """
import os
from flowlite import FlowApp

app = FlowApp()

class Unlucky(Exception):
    pass

@app.function(num_instances=2, processes_per_node=2, distributed_mode="mpi")
def add(unlucky: int = -1) -> tuple[int, int]:
    from mpi4py import MPI
    world = MPI.COMM_WORLD
    if world.rank == unlucky:
        raise Unlucky(f"rank {unlucky} on node {os.environ['FLOW_NODE_RANK']}")
    return world.allreduce(10 ** world.rank), world.size

if __name__ == "__main__":
    print(add.spawn().results())
    for unlucky in (0, 3):
        task = add.spawn(unlucky=unlucky)
        try:
            task.result()
        except Unlucky as error:
            print(error, error.__notes__[0].partition(" of task")[0])
        print(task.reason)
"""


def gang(home: Path, argv: list[str], **config: object) -> Gang:
    return submit(
        home,
        argv,
        nodes=2,
        distributed_mode="mpi",
        processes_per_node=2,
        **config,  # type: ignore[arg-type]
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory for programs."""
    (tmp_path / "add.py").write_text(ADD)
    (tmp_path / "bare.py").write_text(BARE)
    (tmp_path / "waiting.py").write_text(WAITING)
    return tmp_path


def lines(of: Gang) -> list[list[str]]:
    return sorted(line.split() for line in of.output(0).splitlines())


def test_a_command_runs_on_every_slot_of_every_node(flow_home: Path, source: Path) -> None:
    done = gang(flow_home, [str(python()), str(source / "add.py")])
    done.end(timeout=SECONDS)
    assert lines(done) == ADDED
    assert not list(done.paths.logs.glob("a1.n1.*.out"))


def test_processes_of_horovod_meet_at_the_store_that_is_served(
    flow_home: Path, source: Path
) -> None:
    (source / "meet.py").write_text(MEET)
    done = gang(flow_home, [str(python()), str(source / "meet.py")])
    done.end(timeout=SECONDS)
    assert done.output(0).splitlines() == ["0/0/2/0/2 1/1/2/0/2 2/0/2/1/2 3/1/2/1/2"] * 4


def test_the_users_own_mpirun_finds_all_nodes_by_itself(flow_home: Path, source: Path) -> None:
    bare = str(source / "bare.py")
    text = f'cat "$FLOW_HOSTFILE"; mpirun {python()} {bare}; mpirun -n 1 --host 127.0.0.2 {python()} {bare}'
    done = gang(flow_home, ["sh", "-c", text])
    done.end(timeout=SECONDS)
    said = done.output(0).splitlines()
    assert said[:2] == ["127.0.0.1 slots=2", "127.0.0.2 slots=2"]
    assert sorted(said[2:6]) == ["0 4", "1 4", "2 4", "3 4"]
    assert said[6:] == ["0 1"]


def test_a_function_returns_what_rank_0_returns_and_raises_what_any_rank_raises(
    flow_home: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(FUNCTION)
    done = subprocess.run(
        [python(), program], capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path
    )
    failure = "first failure: node 0, rank 0: __main__.Unlucky"
    assert done.stdout.splitlines() == [
        "[(1111, 4), None]",
        "rank 0 on node 0 raised on node 0, rank 0",
        f"{failure}: rank 0 on node 0 (rank 0 of MPI, on node 0)",
        "rank 3 on node 1 raised on node 1, rank 3",
        f"{failure}: rank 3 on node 1 (rank 3 of MPI, on node 1)",
    ], done.stderr[-3000:]


@pytest.mark.parametrize("kind", ["command", "function"])
def test_doctor_and_top_see_the_ranks_of_all_nodes(
    flow_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    interpreter = python()
    # The tests' own environment has py-spy, that of mpi4py has not.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    (tmp_path / "hang.py").write_text(HANGS)
    words = ["hang.py::hang"]
    if kind == "command":
        words = ["-N2", "--mode=mpi", "--processes-per-node=2", "--", str(interpreter), "hang.py"]

    def flow(*arguments: str) -> str:
        return subprocess.run(
            [interpreter, "-m", "flowlite.cli", *arguments],
            capture_output=True, text=True, timeout=120, check=True, cwd=tmp_path,
        ).stdout  # fmt: skip

    task = flow("run", "--detach", *words).split()[-1]
    try:
        lines = HANGS.splitlines()

        def found() -> bool:
            groups = json.loads(flow("doctor", task, "--json", "--no-links"))["data"]["groups"]
            places = {
                lines[frame["line"] - 1].strip(): group["ranks"]
                for group in groups
                for frame in group["frames"][:1]
                if frame["file"].endswith("hang.py")
            }
            return places == {"time.sleep(600)": [3], "world.Barrier()": [0, 1, 2]}

        eventually(found, timeout=SECONDS, every=0.2, what="all ranks at their places")
        nodes = json.loads(flow("top", task, "--json"))["data"]["nodes"]
        assert [node["ranks"] for node in nodes] == [[0, 1], [2, 3]]
        assert all(node["memory"] > 0 for node in nodes)
    finally:
        flow("cancel", task)


def waiting(home: Path, source: Path) -> tuple[Gang, list[int]]:
    """A gang whose four processes wait, and their ids."""
    begun = gang(home, [sys.executable, str(source / "waiting.py")])
    begun.wait("running", timeout=SECONDS)
    out = begun.paths.directory

    def pids() -> list[int]:
        found = list(out.glob("nodes/*/a1/r0.out"))
        said = found[0].read_text() if found else ""
        return [int(line) for line in said.splitlines()] if said.count("\n") == 4 else []

    python()
    return begun, eventually(pids, timeout=SECONDS)


@pytest.mark.parametrize("what", ["rank", "agent 0", "agent 1", "cancelled"])
def test_nothing_is_left_whatever_is_killed(flow_home: Path, source: Path, what: str) -> None:
    begun, pids = waiting(flow_home, source)
    assert all(map(process_alive, pids))
    daemons = [pid for pid in processes_of(begun.id) if _is(pid, "orted")]
    assert len(daemons) == 1
    if what == "rank":
        os.kill(pids[3], signal.SIGKILL)
    elif what == "cancelled":
        begun.store.request_cancel(begun.id)
    else:
        os.kill(begun.agent(int(what[-1])), signal.SIGKILL)
    begun.end("cancelled" if what == "cancelled" else "failed", timeout=SECONDS)
    assert not any(map(process_alive, [*pids, *daemons]))


def test_the_other_nodes_stay_until_node_0_has_ended(flow_home: Path) -> None:
    """As long as its grace lasts, a call that is told to stop has all that it had."""
    text = "trap 'ssh flow-node-1 echo still there; exit 0' TERM; echo here; while :; do sleep 0.05; done; ./x.sh"
    begun = gang(flow_home, ["sh", "-c", text], grace_seconds=60.0)
    begun.wait("running", timeout=SECONDS)
    said = begun.paths.directory
    eventually(
        lambda: [p for p in said.glob("nodes/*/a1/r0.out") if p.read_text()], timeout=SECONDS
    )
    begun.store.request_cancel(begun.id)
    begun.end("cancelled", timeout=SECONDS)
    assert begun.output(0) == "here\nstill there\n"


@pytest.mark.needs("mpi")
def test_a_new_attempt_meets_anew(flow_home: Path) -> None:
    text = 'mpirun sh -c "exit $((FLOW_ATTEMPT == 1))"'
    begun = gang(flow_home, ["sh", "-c", text], retries=1)
    record = begun.end(timeout=SECONDS)
    assert (record.attempt, record.retries_used) == (2, 1)


def test_two_tasks_run_side_by_side(flow_home: Path, source: Path) -> None:
    both = [gang(flow_home, [str(python()), str(source / "add.py")]) for _ in range(2)]
    for each in both:
        each.end(timeout=SECONDS)
        assert [line[-1] for line in lines(each)] == ["1111"] * 4


def test_an_mpi_that_is_missing_is_named_before_go(flow_home: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("sh", "env"):
        (bare / name).symlink_to(f"/bin/{name}")
    failed = gang(flow_home, ["./a.out"], environment={"PATH": str(bare)})
    record = failed.end("failed", timeout=SECONDS)
    assert 'distributed_mode="mpi" needs an MPI on every node' in record.reason
    assert "apt-get install openmpi-bin" in record.reason
    assert "running" not in [kind for kind, _ in failed.events]


def _is(pid: int, program: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == program
