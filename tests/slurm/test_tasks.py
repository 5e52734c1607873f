"""Whole tasks on a real Slurm: ranks as Slurm counts its nodes, no shared directory, reasons for waiting, the end."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from flowlite.node.config import fencing
from flowlite.supervise.attempt.node_verdict import PATIENCE
from flowlite.testing.hosts import Host
from flowlite.testing.slurm import SlurmCluster
from tests.flow_commands.run import flow as run_flow
from tests.helpers import eventually
from tests.slurm.site import COUNT, STAY, SlurmSite, shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

_FLOW = [sys.executable, "-m", "flowlite.cli"]


def flow(site: SlurmSite, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `flow` on the laptop."""
    with site.slurm.enter_laptop():
        return run_flow(words, timeout=100)


def test_ranks_are_the_numbers_that_slurm_gives_to_the_nodes(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    gang = slurm_site.submit(shell(f"echo rank $RANK/$WORLD_SIZE $(hostname); {STAY}"), nodes=4)
    job = gang.running()
    # What Slurm set for the step's task on each node; workers have their own variables of that kind.
    numbers = {host.name: _node_number(host, job) for host in slurm.nodes}
    hosts = sorted(host.name for host in slurm.nodes)
    assert [numbers[name] for name in hosts] == [0, 1, 2, 3]
    said = sorted(line for line in gang.words(1) if line.startswith("rank"))
    assert said == [f"rank {i}/4 {hosts[i]}" for i in range(4)]
    assert gang.record.roster == [f"{job}.00.{i:05d}" for i in range(4)]
    slurm_site.go()
    gang.end()


def _node_number(host: Host, job: int) -> int:
    """SLURM_NODEID of the one task of a job's step on a host."""
    for pid in host.pids():
        with suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            said = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if b"step-daemon" in command and f"SLURM_JOB_ID={job}".encode() in said:
                (found,) = (each for each in said if each.startswith(b"SLURM_NODEID="))
                return int(found.partition(b"=")[2])
    raise AssertionError(f"no step daemon on {host.name}")


def is_in_step(host: Host, step: str, pid: str) -> bool:
    return pid in host.exec(["scontrol", "listpids", step]).stdout.split()


def test_everything_that_runs_belongs_to_the_one_step(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(f"echo pid $$; {STAY}"))
    job = gang.running()
    for node in range(2):
        (said,) = (line for line in gang.output(node).splitlines() if line.startswith("pid"))
        pid = said.split()[1]
        eventually(
            partial(is_in_step, gang.host(node), f"{job}.0", pid),
            what=f"{pid} is in the step",
        )
    # And so Slurm ends it, with nobody's help.
    slurm_site.slurm.run("scancel", f"{job}.0")
    assert gang.end("failed").reason


def test_without_a_shared_directory(slurm: SlurmCluster, slurm_site: SlurmSite) -> None:
    """The default lies in the home of the login node, which the nodes do not have."""
    file = slurm_site.home / "config.toml"
    kept = [line for line in file.read_text().splitlines() if not line.startswith("shared_dir")]
    file.write_text("\n".join(kept) + "\n")
    gang = slurm_site.submit(shell("echo $RANK"))
    gang.end()
    assert sorted(gang.words(1)) == ["0", "1"]


def test_the_cards_of_a_job_are_those_that_slurm_gave(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(
        shell("echo $CUDA_VISIBLE_DEVICES"), nodes=1, slurm={"gpus_per_node": 1}
    )
    gang.end()
    assert gang.words(1) in (["0"], ["1"])


def test_what_slurm_refuses_is_told_with_its_words(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell("true"), slurm={"account": "nobody"})
    record = gang.end("failed")
    assert "account" in record.reason.lower(), gang.story()


def test_a_node_dir_of_another_user_is_named_with_its_node(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    planted, host = "/tmp/flowlite-slurm-1234", slurm.nodes[1]
    host.exec(["sh", "-c", f"rm -rf {planted}; mkdir -m 700 {planted}; chown 4321 {planted}"])
    try:
        gang = slurm_site.submit(shell("true"), nodes=len(slurm.nodes))
        reason = gang.end("failed").reason
    finally:
        host.exec(["rmdir", planted])
    assert "others could change what runs as you in node_dir" in reason, gang.story()
    assert f"({host.name}: {planted} belongs to uid 4321)" in reason, gang.story()


def test_a_full_disk_of_a_node_is_told_and_not_filled_further(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    place, host = "/tmp/flowlite-slurm-1234", slurm.nodes[1]
    full = (
        f"rm -rf {place}; mkdir {place}; mount -t tmpfs -o size=200k,uid=1234,mode=700 none {place}"
    )
    host.exec(["sh", "-c", full])
    try:
        gang = slurm_site.submit(shell("true"), nodes=len(slurm.nodes))
        reason = gang.end("failed").reason
        left = host.exec(["find", place, "-type", "f"]).stdout
    finally:
        host.exec(["sh", "-c", f"umount {place}; rmdir {place}"])
    assert f"({host.name}: {place}/blobs/" in reason, gang.story()
    assert "No space left on device" in reason, gang.story()
    assert left == ""


def test_why_a_job_waits_is_shown(slurm_site: SlurmSite, slurm: SlurmCluster) -> None:
    gang = slurm_site.submit(shell("true"), slurm={"qos": "onegpu", "gpus_per_node": 2})
    gang.until(lambda: gang.said("QOSMax"), 60)
    shown = flow(slurm_site, "status", gang.id)
    assert "QOSMax" in shown.stdout, shown.stdout + shown.stderr
    assert flow(slurm_site, "cancel", gang.id).returncode == 0
    gang.end("cancelled")
    assert slurm.jobs() == []


def test_a_task_goes_on_after_slurm_has_suspended_its_job(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    """As for a job that may be stopped for others (`PreemptMode=SUSPEND`), or by an administrator."""
    gang = slurm_site.submit(shell(COUNT))
    job = gang.running()
    slurm.run("scontrol", "suspend", str(job))
    gang.until(lambda: gang.said("cannot be reached"))
    # Longer than nodes that are silent are waited for, and longer than those wait that have lost the others.
    until = time.monotonic() + fencing.FENCE_AFTER + PATIENCE
    while time.monotonic() < until:
        assert slurm.job(job)["JobState"] == "SUSPENDED"
        assert gang.record.state == "running", gang.story()
        time.sleep(1)
    slurm.run("scontrol", "resume", str(job))
    slurm_site.go()
    assert gang.end().attempt == 1


def test_a_task_whose_job_is_suspended_can_be_cancelled(
    slurm_site: SlurmSite, slurm: SlurmCluster
) -> None:
    gang = slurm_site.submit(shell(COUNT))
    slurm.run("scontrol", "suspend", str(gang.running()))
    gang.until(lambda: gang.said("cannot be reached"))
    assert flow(slurm_site, "cancel", gang.id).returncode == 0
    gang.end("cancelled")


def test_a_command_on_a_node_of_a_task_that_runs(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(STAY))
    gang.running()
    for node in range(2):
        done = flow(slurm_site, "ssh", gang.id, "--node", str(node), "-c", "hostname")
        assert done.stdout.strip() == gang.host(node).name, done.stderr
    logs = flow(slurm_site, "logs", gang.id)
    assert logs.stdout.count("attempt 1") == 2, logs.stdout + logs.stderr
    slurm_site.go()
    gang.end()
