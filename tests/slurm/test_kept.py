"""What could not be fetched before a job ended stays on its nodes, and is fetched later through a small job."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowlite import TaskFailed
from flowlite.connect.step import pool
from flowlite.testing.slurm import SlurmCluster
from provider_adapters.slurm import nodes
from tests.helpers import eventually, kill_processes_of_home, put_agent
from tests.slurm.site import ROOT, SlurmGang, SlurmSite
from tests.slurm.traces import jobs_of, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MB = 1_000_000
PROGRAM = """
import os, time

from flowlite import FlowApp

app = FlowApp()


@app.function(processes_per_node=1, grace_seconds=1.0, secrets=["KEPT_TOKEN"])
def leave(size: int) -> bytes:
    print("here", flush=True)
    while not os.path.exists("/mnt/shared/go"):
        time.sleep(0.05)
    print("end", flush=True)
    return bytes([int(os.environ["RANK"])]) * size
"""


@pytest.fixture
def small_site(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmSite]:
    """A FLOW_HOME on a disk of 30 MB, whose supervisors wait 15 s for files."""
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=30m", "small", str(home)], check=True)
    try:
        put_agent(home)
        slurm.hide_nodes()
        site = SlurmSite(slurm, home, monkeypatch)
        impatient = ROOT / "tests" / "faults" / "impatient"
        monkeypatch.setenv("PYTHONPATH", f"{impatient}:{ROOT}")
        monkeypatch.setenv("KEPT_TOKEN", "never to be kept")
        yield site
    finally:
        pool.close_idle()
        kill_processes_of_home(home)
        subprocess.run(["umount", "--lazy", str(home)], check=True)


def leave(site: SlurmSite, directory: Path, size: int) -> tuple[Any, SlurmGang]:
    """Submits a function that returns so many bytes on each of two nodes, and waits until it runs there."""
    directory.mkdir()
    (directory / "kept_on_slurm.py").write_text(PROGRAM)
    sys.path.insert(0, str(directory))
    try:
        module = importlib.import_module("kept_on_slurm")
        with site.slurm.enter_laptop():
            task = module.leave.options(num_instances=2).spawn(size)
    finally:
        sys.path.remove(str(directory))
        sys.modules.pop("kept_on_slurm", None)
    gang = SlurmGang(site, task.record)
    gang.running()
    return task, gang


def homes(gang: SlurmGang) -> list[Path]:
    """The directories of the task's nodes, on all hosts."""
    return [
        path
        for name in gang.record.roster
        for host in gang.site.slurm.nodes
        for path in (host.root / "tmp").glob(f"flowlite-*/{name}")
    ]


def test_results_that_did_not_come_in_time_are_brought_after_the_job(
    small_site: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "_FREE_WITHIN_SECONDS", 5)
    slurm = small_site.slurm
    task, gang = leave(small_site, tmp_path / "program", 40 * MB)
    small_site.go()
    record = gang.wait("failed", timeout=120)
    assert f"`flow result {gang.id}` brings them" in record.reason, gang.story()

    # The job is over, nothing of it runs, and the nodes have only what the ranks have written.
    eventually(lambda: not jobs_of(slurm, gang.id))
    eventually(lambda: not any(processes_of(host, gang.id) for host in slurm.nodes))
    assert len(homes(gang)) == 2
    for rank, home in enumerate(homes(gang)):
        names = {path.name for path in home.rglob("*") if path.is_file()}
        outputs = {f"r{rank}.{kind}" for kind in ("out", "err", "result")}
        assert outputs <= names <= {*outputs, f"r{rank}.setup", "agent.log", "report.json"}

    # Somebody else has the nodes.
    subprocess.run(["mount", "-o", "remount,size=300m", str(small_site.home)], check=True)
    other = slurm.run("sbatch", "--parsable", "-N4", "--exclusive", "--wrap", "sleep 600").strip()
    slurm.wait(lambda: slurm.job(int(other))["JobState"] == "RUNNING", "it runs")
    with slurm.enter_laptop(), pytest.raises(TaskFailed) as seen:
        list(task.results(90))
    assert any("Try again when the node is free" in note for note in seen.value.__notes__), (
        seen.value.__notes__
    )
    slurm.cancel(int(other))
    slurm.wait(lambda: slurm.job(int(other))["JobState"] != "RUNNING", "it is over")

    def are_here() -> bool:
        with slurm.enter_laptop():
            try:
                found = list(task.results(90))
            except TaskFailed:
                return False
        return found == [bytes([rank]) * (40 * MB) for rank in range(2)]

    # The nodes are not free in the very moment in which that job is.
    eventually(are_here, timeout=90)
    assert homes(gang) == []
    with slurm.enter_laptop():
        pool.close_idle()
    eventually(lambda: "flow-result" not in slurm.run("squeue", "-h", "-o", "%j"))
