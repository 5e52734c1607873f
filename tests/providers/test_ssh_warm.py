"""`keep_warm` on hosts reached by SSH: the lease and the imports stay for the next task of the same owner."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.helpers import eventually
from tests.providers.lab import Lab, left_on

if TYPE_CHECKING:
    from flowlite.testing.hosts import Cluster

PROGRAM = """
import os, sys
from flowlite import FlowApp

app = FlowApp(provider="ssh", keep_warm=sys.argv[1])

@app.function(num_instances=2, processes_per_node=2, environment={"OMP_NUM_THREADS": "1"})
def where() -> tuple[str, int, int]:
    import colorsys
    with open(f"/proc/{os.getppid()}/stat") as file:
        template = int(file.read().rpartition(")")[2].split()[1])
    return os.uname().nodename, os.getpid(), template

if __name__ == "__main__":
    import json
    tasks = [where.spawn().wait() for _ in range(int(sys.argv[2]))]
    print(json.dumps([task.results() for task in tasks]))
"""


@pytest.fixture
def run(lab: Lab, tmp_path: Path) -> Any:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    def run(keep: str, times: int) -> list[list[list[Any]]]:
        with lab.cluster.enter_laptop():
            done = subprocess.run(
                [sys.executable, str(script), keep, str(times)],
                env=lab.environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        assert done.returncode == 0, f"{done.stderr}\n{lab.supervisor_logs()}"
        found: list[list[list[Any]]] = json.loads(done.stdout)
        return found

    return run


def test_the_next_task_goes_on_where_the_last_one_ended(lab: Lab, run: Any) -> None:
    first, second = run("5m", 2)
    assert [row[0] for row in first] == [row[0] for row in second]
    assert {(row[0], row[2]) for row in first} == {(row[0], row[2]) for row in second}
    assert not {(row[0], row[1]) for row in first} & {(row[0], row[1]) for row in second}
    shown = lab.flow("status").stdout
    assert "2 nodes are kept warm (ssh) until" in shown
    assert sorted(lab.held()) == ["node00", "node01"]
    lab.flow("gc")
    assert sorted(lab.held()) == ["node00", "node01"]
    # Another client process, later.
    (third,) = run("5m", 1)
    assert {(row[0], row[2]) for row in third} == {(row[0], row[2]) for row in first}
    assert lab.flow("gc", "--warm").stdout.count("ended") == 2
    assert lab.held() == {}
    assert [left_on(host) for host in lab.hosts[:2]] == [[], []]
    assert "warm" not in lab.flow("status").stdout


def test_they_end_by_themselves_with_no_client_anywhere(lab: Lab, run: Any) -> None:
    run("6s", 1)
    for host in lab.hosts[:2]:
        eventually(lambda host=host: left_on(host) == [], every=0.2)
    eventually(lambda: lab.held() == {}, every=0.5)


def test_a_kept_host_is_taken_before_a_free_one(
    hosts: Cluster, flow_home: Path, lab: Lab, run: Any
) -> None:
    holder = lab.submit("-N", "1", "--", "sleep", "600")
    lab.wait(holder, "running")
    run("5m", 1)
    lab.flow("cancel", "--wait", holder)
    assert sorted(lab.held()) == ["node01", "node02"]
    task = lab.submit("-N", "1", "--", "hostname")
    assert lab.wait(task, "completed")
    assert "node01" in lab.flow("logs", task).stdout
    (told,) = [row for row in lab.json("status") if row["warm_nodes"]]
    assert told["warm_nodes"] == 1
    lab.flow("gc", "--warm")
    assert lab.held() == {}


def test_of_a_task_that_ends_without_the_wish_nothing_stays(lab: Lab, run: Any) -> None:
    run("5m", 1)
    run("0", 1)
    assert lab.held() == {}
    assert [left_on(host) for host in lab.hosts[:2]] == [[], []]


def test_the_next_run_of_a_script_is_forked_from_what_the_last_one_left(
    lab: Lab, tmp_path: Path
) -> None:
    script = tmp_path / "look.py"
    script.write_text(
        "import colorsys, os, sys\n"
        "status = open(f'/proc/{os.getppid()}/stat').read()\n"
        "print('look', os.environ['RANK'], sys.argv, sys._getframe().f_back, status.rpartition(')')[2].split()[1])\n"
    )
    seen = []
    for name in ("first", "second"):
        options = ("-N", "2", "--keep-warm", "5m", "--sync", "--name", name)
        done = lab.flow("run", *options, "--", "python3", "look.py", name, cwd=tmp_path)
        lines = [line.partition("look ")[2] for line in done.stdout.splitlines() if "look " in line]
        assert [line.rpartition(" ")[0] for line in sorted(lines)] == [
            f"{rank} ['look.py', '{name}'] None" for rank in range(2)
        ], done.stdout
        seen.append([line.rpartition(" ")[2] for line in sorted(lines)])
    assert seen[0] == seen[1]
    lab.flow("gc", "--warm")
    assert lab.held() == {}
