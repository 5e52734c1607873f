"""Jobs on a real Slurm that are kept for the next task: by `keep_warm`, and by the tasks of a sweep for one another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.node.system import processes
from flowlite.state.store import Store
from flowlite.testing.slurm import SlurmCluster
from tests.flow_commands.run import flow as run_flow
from tests.helpers import eventually, kill_processes_of_home
from tests.slurm.site import SlurmSite
from tests.slurm.traces import left_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = """
import os, sys, time
from flowlite import FlowApp

app = FlowApp()

def parent(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])

@app.function(num_instances=2, processes_per_node=1, grace_seconds=1.0)
def where(number: int) -> str:
    import colorsys

    while number < 0 and not os.path.exists("/mnt/shared/go"):
        time.sleep(0.05)
    return f"{number} {os.environ['SLURM_JOB_ID']} {parent(os.getppid())} {os.environ['FLOW_TASK_ID']}"

if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "map":
        for told in where.map([int(each) for each in words], max_concurrent=2):
            print(told, flush=True)
    else:
        print(where.options(keep_warm=what).remote(int(words[0])), flush=True)
"""


@pytest.fixture
def program(slurm_site: SlurmSite, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Starts the program on the laptop."""
    (tmp_path / "where.py").write_text(PROGRAM)

    def start(*words: str) -> subprocess.Popen[str]:
        with slurm_site.slurm.enter_laptop():
            return subprocess.Popen(
                [sys.executable, "where.py", *words],
                cwd=tmp_path,
                env=os.environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    return start


def told(process: subprocess.Popen[str]) -> list[list[str]]:
    """What the tasks of a program have returned: number, job, fork server, task."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    return [line.split() for line in out.splitlines()]


def _task(pid: int) -> str:
    """The task of a process; "" if it is of none."""
    return processes.environment_of(pid).get("FLOW_TASK_ID", "")


def flow(site: SlurmSite, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `flow` on the laptop."""
    with site.slurm.enter_laptop():
        return run_flow(words, cwd=directory, timeout=300)


def test_the_next_call_gets_the_job_and_its_imports(
    slurm_site: SlurmSite,
    slurm: SlurmCluster,
    program: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
) -> None:
    ((_, job, server, first),) = told(program("10m", "1"))
    assert slurm.jobs("RUNNING") == [int(job)]
    # Slurm would queue it again after a preemption, and nobody would wait for it.
    assert slurm.job(job)["Requeue"] == "0"
    # Nothing of the first task is left in its job but the fork servers, which belong to no task.
    assert not [host.name for host in slurm.nodes for pid in host.pids() if _task(pid) == first]
    ((_, again, same, second),) = told(program("10m", "2"))
    assert (again, same) == (job, server)
    assert first != second
    status = flow(slurm_site, tmp_path, "status").stdout
    assert "2 nodes are kept warm (slurm)" in status
    rows = Store(slurm_site.home / "state.db").instances(first)
    assert [each.state for each in rows] == ["ended"] * 2
    # A task that asks for something else gets a job of its own, and leaves this one.
    done = flow(slurm_site, tmp_path, "run", "-N", "1", "--", "true")
    assert done.returncode == 0, done.stdout + done.stderr
    assert slurm.jobs("RUNNING") == [int(job)]
    assert "ended" in flow(slurm_site, tmp_path, "gc", "--warm").stdout
    slurm.wait(lambda: not slurm.jobs(), "the job has ended")
    assert slurm.job(job)["JobState"] == "COMPLETED"
    assert not [each for task in (first, second) for each in left_of(slurm, task)]


def test_the_tasks_of_a_sweep_hand_their_jobs_on(
    slurm: SlurmCluster, program: Callable[..., subprocess.Popen[str]]
) -> None:
    found = told(program("map", *map(str, range(8))))
    assert [number for number, *_ in found] == [str(number) for number in range(8)]
    assert len({job for _, job, *_ in found}) == 2
    assert len({server for _, _, server, _ in found}) == 2
    assert len({task for *_, task in found}) == 8
    slurm.wait(lambda: not slurm.jobs(), "the jobs have ended")
    assert not [each for *_, task in found for each in left_of(slurm, task)]


def test_a_sweep_that_is_interrupted_ends_all_its_jobs(
    slurm: SlurmCluster, slurm_site: SlurmSite, program: Callable[..., subprocess.Popen[str]]
) -> None:
    sweep = program("map", "0", "1", "-2", "-3", "4")
    assert sweep.stdout is not None
    assert [sweep.stdout.readline().split()[0] for _ in range(2)] == ["0", "1"]
    store = Store(slurm_site.home / "state.db")
    eventually(
        lambda: [each.state for each in store.list_tasks(unfinished=True)] == ["running"] * 2,
        timeout=120,
    )
    assert len(slurm.jobs("RUNNING")) == 2
    sweep.send_signal(signal.SIGINT)
    sweep.communicate(timeout=120)
    slurm.wait(lambda: not slurm.jobs(), "the jobs have ended")
    eventually(lambda: all(each.final for each in store.list_tasks()), timeout=120)
    assert {each.state for each in store.list_tasks()} == {"completed", "cancelled"}


@pytest.mark.parametrize("how", ["scancel", "a node fails"])
def test_a_kept_job_that_is_gone_is_replaced(
    slurm: SlurmCluster, program: Callable[..., subprocess.Popen[str]], how: str
) -> None:
    ((_, job, *_),) = told(program("10m", "1"))
    if how == "scancel":
        slurm.cancel(int(job))
    else:
        name = slurm.run("scontrol", "show", "hostnames", slurm.job(job)["NodeList"]).split()[1]
        slurm.kill_node(next(host for host in slurm.nodes if host.name == name))
    ((_, other, *_),) = told(program("10m", "2"))
    assert other != job
    slurm.wait(lambda: slurm.jobs() == [int(other)], "the first job has ended", 120)
    slurm.cancel(int(other))


def test_a_kept_job_ends_by_itself_if_all_that_runs_here_is_killed(
    slurm: SlurmCluster, slurm_site: SlurmSite, program: Callable[..., subprocess.Popen[str]]
) -> None:
    ((_, job, *_),) = told(program("20s", "1"))
    kill_processes_of_home(slurm_site.home)
    slurm.wait(lambda: not slurm.jobs(), "the job has ended")
    assert slurm.job(job)["JobState"] == "COMPLETED"
