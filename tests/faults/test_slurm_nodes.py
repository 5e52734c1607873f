"""Nodes of a Slurm that are drained, die, or are taken by somebody whose QOS is higher."""

from __future__ import annotations

import sys

import pytest

from flowlite.testing.slurm.configuration import QOS_BRIEF
from tests.slurm.site import ROOT, STAY, SlurmGang, SlurmSite, shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

# Slurm sends SIGTERM to all that runs in a job whose grace begins, and we send SIGUSR2 to who has a handler for it.
WARNED = (
    "trap 'echo warned' USR2; trap 'echo asked to end' TERM; echo attempt $FLOW_ATTEMPT on $(hostname); "
    "while [ ! -e /mnt/shared/go ]; do sleep 0.1; done; echo done"
)
# Slurm's SIGTERM is nothing to it: only what `should_stop()` says ends the first attempt.
ASKS = """
import itertools, os, pathlib, signal, sys, time
from flowlite import should_stop

signal.signal(signal.SIGTERM, lambda *_: None)
print("attempt", os.environ["FLOW_ATTEMPT"], flush=True)
for step in itertools.count():
    if should_stop():
        print("should stop at", step, flush=True)
        sys.exit(0)
    if pathlib.Path("/mnt/shared/go").exists():
        print("done", flush=True)
        sys.exit(0)
    time.sleep(0.05)
"""


def test_a_node_is_drained_and_the_task_goes_on(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(STAY))
    gang.running()
    slurm = slurm_site.slurm
    slurm.drain(gang.host(1))
    slurm.wait(lambda: "draining" in slurm.states().values(), "the node drains")
    slurm_site.go()
    assert gang.end().attempt == 1


@pytest.mark.parametrize("node", [0, 1], ids=["leader", "member"])
def test_a_node_dies_and_the_job_is_replaced(slurm_site: SlurmSite, node: int) -> None:
    gang = slurm_site.submit(shell(STAY), retries=1)
    first = gang.running()
    lost = gang.host(node)
    slurm_site.slurm.kill_node(lost)
    second = gang.running(attempt=2, timeout=200)
    hosts = {gang.host(each).name for each in range(2)}
    assert lost.name not in hosts
    assert [line.partition(" on ")[0] for line in gang.words(2)] == ["attempt 2"] * 2
    assert {line.partition(" on ")[2] for line in gang.words(2)} == hosts
    slurm_site.go()
    record = gang.end()
    # Where Slurm notices first, it queues the job again by itself, and that is nobody's failure.
    assert (record.attempt, record.retries_used) in ((2, 1), (2, 0))
    assert slurm_site.slurm.job(first).get("JobState") != "RUNNING"
    assert second != first or slurm_site.slurm.job(first)["Restarts"] != "0"


def test_a_node_dies_and_the_task_says_which(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(STAY))
    gang.running()
    name = gang.record.roster[1]
    slurm_site.slurm.kill_node(gang.host(1))
    record = gang.end("failed", timeout=200)
    assert f"node 1 ({name})" in record.reason, gang.story()
    assert "first failure" not in record.reason, gang.story()


def test_a_higher_qos_takes_the_nodes_and_the_task_comes_back(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(STAY))
    job = gang.running()
    before = list(gang.record.roster)
    slurm = slurm_site.slurm
    higher = slurm.submit_higher()
    slurm.wait(lambda: slurm.job(higher)["JobState"] == "RUNNING", "the higher one runs")
    gang.until(lambda: gang.said("Slurm has queued the job again"), 90)
    slurm.cancel(higher)
    slurm.start_now(job)
    assert gang.running(attempt=2) == job
    assert not set(before) & set(gang.record.roster)
    slurm_site.go()
    record = gang.end()
    # Nobody is charged a retry for what Slurm took and gave back.
    assert (record.attempt, record.retries_used) == (2, 0)


def test_the_ranks_are_warned_before_a_higher_qos_takes_the_nodes(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(WARNED), slurm={"qos": QOS_BRIEF})
    job = gang.running()
    slurm = slurm_site.slurm
    higher = slurm.submit_higher()
    gang.until(lambda: gang.words(1).count("warned") == 2, 60)
    comes_back(slurm_site, gang, job, higher)


def comes_back(slurm_site: SlurmSite, gang: SlurmGang, job: int, higher: int) -> None:
    """The preempted task goes on once the other job has ended, and to its end."""
    slurm = slurm_site.slurm

    def is_queued_again() -> bool:
        return slurm.job(job)["Restarts"] == "1"

    # The ranks end before the grace does. If their job ends before Slurm has queued it again, another one is submitted.
    slurm.wait(
        lambda: is_queued_again() or set(slurm.jobs()) - {job, higher}, "it comes back", timeout=120
    )
    slurm.cancel(higher)
    if is_queued_again():
        slurm.start_now(job)
    gang.running(attempt=2)
    slurm_site.go()
    assert gang.end().attempt == 2


def test_ranks_that_ask_should_stop_use_the_grace_of_a_preemption(slurm_site: SlurmSite) -> None:
    environment = {"PYTHONPATH": str(ROOT)}
    gang = slurm_site.submit(
        [sys.executable, "-c", ASKS], environment=environment, slurm={"qos": QOS_BRIEF}
    )
    job = gang.running()
    higher = slurm_site.slurm.submit_higher()
    gang.until(lambda: sum("should stop" in word for word in gang.words(1)) == 2, 60)
    steps = {word for word in gang.words(1) if "should stop" in word}
    assert len(steps) == 1
    comes_back(slurm_site, gang, job, higher)


def test_an_administrator_queues_the_job_again(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(STAY))
    job = gang.running()
    slurm_site.slurm.requeue(job)
    assert gang.running(attempt=2) == job
    slurm_site.go()
    assert gang.end().attempt == 2
    assert gang.words(2).count("done") == 2
