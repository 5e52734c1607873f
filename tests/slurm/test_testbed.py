"""The Slurm that tests run against: it behaves as a real one, can be harmed, and is whole again afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flowlite.testing.hosts.probes import Traces
from flowlite.testing.slurm import SlurmCluster
from flowlite.testing.slurm.__main__ import main
from tests.helpers import eventually

pytestmark = pytest.mark.slow


def _on_laptop(slurm: SlurmCluster, *argv: str) -> str:
    with slurm.enter_laptop():
        done = subprocess.run(
            argv, env=slurm.login_environment(), capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _until(slurm: SlurmCluster, job: int, state: str, timeout: float = 90) -> dict[str, str]:
    return slurm.wait(
        lambda: found if (found := slurm.job(job))["JobState"] == state else None,
        f"job {job} is {state}",
        timeout,
    )


def test_jobs_run_on_all_nodes_from_the_login_node_and_from_the_laptop(slurm: SlurmCluster) -> None:
    names = sorted(host.name for host in slurm.nodes)
    argv = ("srun", f"--nodes={len(names)}", "hostname")
    assert sorted(slurm.run(*argv, user="flow").split()) == names
    assert sorted(_on_laptop(slurm, *argv).split()) == names


def test_the_laptop_and_the_nodes_have_one_directory_in_common(slurm: SlurmCluster) -> None:
    (slurm.shared / "word").write_text("from the laptop")
    said = _on_laptop(slurm, "srun", "--nodes=2", "cat", str(slurm.shared / "word"))
    assert said == "from the laptop" * 2
    here = ("srun", "test", "-e", "/home/flow/mine")
    (slurm.head.root / "home/flow/mine").touch()
    with pytest.raises(RuntimeError):
        slurm.run(*here, user="flow")


def test_a_job_sees_the_cards_it_was_given(slurm: SlurmCluster) -> None:
    asked = ("srun", "--gpus-per-node=1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; sleep 0.1")
    assert slurm.run(*asked, user="flow").strip() in {"0", "1"}


def test_a_wrong_account_and_a_limit_are_told_as_on_a_cluster(slurm: SlurmCluster) -> None:
    with pytest.raises(RuntimeError, match="Invalid account"):
        slurm.submit("true", "--account=nobody")
    job = slurm.submit("sleep 100", "--qos=onegpu", "--gpus-per-node=2")
    slurm.wait(lambda: slurm.job(job)["Reason"].startswith("QOSMax"), "the limit is named")
    assert slurm.job(job)["JobState"] == "PENDING"


def test_a_job_goes_on_while_slurmctld_is_started_again(slurm: SlurmCluster) -> None:
    job = slurm.submit("sleep 1000")
    _until(slurm, job, "RUNNING")
    slurm.restart_controller()
    assert slurm.job(job)["JobState"] == "RUNNING"
    slurm.cancel(job)
    _until(slurm, job, "CANCELLED")


def test_a_drained_node_gets_no_job(slurm: SlurmCluster) -> None:
    first, *others = slurm.nodes
    slurm.drain(first)
    with pytest.raises(RuntimeError, match=r"[Nn]ode"):
        slurm.run("srun", "--immediate=1", f"--nodelist={first.name}", "hostname", user="flow")
    said = slurm.run("srun", f"--nodes={len(others)}", "hostname", user="flow")
    assert first.name not in said
    slurm.undrain(first)
    slurm.wait_idle()


def test_a_higher_job_takes_the_nodes_and_the_other_comes_back(slurm: SlurmCluster) -> None:
    job = slurm.submit("sleep 1000", "--requeue", "--nodes=2")
    _until(slurm, job, "RUNNING")
    higher = slurm.submit_higher()
    _until(slurm, higher, "RUNNING")
    assert slurm.job(job)["Restarts"] == "1"
    slurm.cancel(higher)
    slurm.start_now(job)
    _until(slurm, job, "RUNNING")


def test_after_a_reset_all_is_as_at_first(slurm: SlurmCluster) -> None:
    job = slurm.submit("sleep 1000", "--nodes=2")
    _until(slurm, job, "RUNNING")
    lost = slurm.nodes[-1]
    slurm.drain(slurm.nodes[2])
    (lost.root / "home/flow/file").touch()
    slurm.kill_node(lost)
    slurm.reset()
    assert set(slurm.states().values()) == {"idle"}
    assert slurm.jobs() == []
    assert not (lost.root / "home/flow/file").exists()
    assert slurm.run("srun", "--nodes=4", "hostname", user="flow").count("node") == 4


def test_nothing_of_it_is_left(fresh_slurm: Callable[..., SlurmCluster]) -> None:
    slurm = fresh_slurm(1)
    slurm.submit("sleep 1000")
    traces = Traces(slurm.hosts)
    slurm.close()
    try:
        eventually(lambda: not traces.left(), what=f"nothing is left: {traces.left()}")
    finally:
        traces.close()


def test_a_person_has_one_by_a_command(
    capsys: pytest.CaptureFixture[str], fresh_slurm: Callable[..., SlurmCluster]
) -> None:
    assert fresh_slurm  # there can be one here
    name = f"test-{os.getpid()}"
    assert main(["--name", name, "up", "1"]) == 0
    try:
        assert "node01" in capsys.readouterr().out
        assert main(["--name", name, "up", "1"]) == 1
        assert "already" in capsys.readouterr().err
        argv = [
            sys.executable,
            "-m",
            "flowlite.testing.slurm",
            "--name",
            name,
            "login",
            "--",
            "sinfo",
        ]
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=root)
        assert "node01" in done.stdout, done.stderr
        assert main(["--name", name, "drain", "node07"]) == 1
        assert "node01" in capsys.readouterr().err
    finally:
        assert main(["--name", name, "down"]) == 0
