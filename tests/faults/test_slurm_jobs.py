"""Slurm takes a job away, stops it or forgets how to answer: the task's end, its reason, and what is left of it."""

from __future__ import annotations

import pytest

from flowlite.errors import ProviderError
from flowlite.state.store import Store
from flowlite.testing.slurm import SlurmCluster
from tests.helpers import eventually
from tests.slurm.site import COUNT, STAY, SlurmSite, shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_a_job_that_somebody_cancelled_ends_the_task(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(STAY))
    job = gang.running()
    slurm_site.slurm.cancel(job)
    record = gang.end("failed")
    assert record.attempt == 1
    assert "cancelled" in record.reason, gang.story()
    assert gang.words(1).count("done") == 0


def test_a_job_that_somebody_cancelled_is_tried_again_where_that_was_asked_for(
    slurm_site: SlurmSite,
) -> None:
    gang = slurm_site.submit(shell(STAY), retries=1)
    first = gang.running()
    slurm_site.slurm.cancel(first)
    second = gang.running(attempt=2)
    assert second != first
    slurm_site.go()
    assert gang.end().attempt == 2


def test_a_waiting_job_that_somebody_cancelled_ends_the_task(slurm_site: SlurmSite) -> None:
    slurm = slurm_site.slurm
    for host in slurm.nodes:
        slurm.drain(host)
    gang = slurm_site.submit(shell("true"))
    job = eventually(slurm.jobs, every=0.1)[0]
    # Why it waits is told in Slurm's word.
    slurm.wait(lambda: _reason(slurm, job), "Slurm says why")
    gang.until(lambda: gang.said(_reason(slurm, job)), 60)
    slurm.cancel(job)
    assert "cancelled" in gang.end("failed").reason


def test_a_task_that_is_cancelled_while_its_job_waits_leaves_no_job(slurm_site: SlurmSite) -> None:
    slurm = slurm_site.slurm
    for host in slurm.nodes:
        slurm.drain(host)
    gang = slurm_site.submit(shell("true"))
    eventually(slurm.jobs, every=0.1)
    gang.store.request_cancel(gang.id)
    gang.end("cancelled")
    assert slurm.jobs() == []


def test_the_time_limit_of_the_job_ends_the_task(slurm_site: SlurmSite) -> None:
    """Slurm counts in minutes, and warns those whose limit is nearer than the warning was to be."""
    gang = slurm_site.submit(shell(STAY))
    job = gang.running()
    slurm_site.slurm.limit(job, 1)
    record = gang.end("failed", timeout=240)
    assert record.attempt == 1
    assert "time limit" in record.reason, gang.story()


def test_slurmctld_is_started_again_and_the_task_goes_on(slurm_site: SlurmSite) -> None:
    gang = slurm_site.submit(shell(COUNT))
    job = gang.running()
    slurm = slurm_site.slurm
    slurm.stop_controller()
    before = len(gang.words(1))
    # Some seconds, and the logs go on coming.
    gang.until(lambda: len(gang.words(1)) > before + 100, 60)
    assert gang.record.state == "running", gang.story()
    slurm.start_controller()
    slurm.wait_controller()
    assert gang.job == job
    slurm_site.go()
    assert gang.end().attempt == 1
    assert gang.words(1).count("done") == 2


def test_slurmctld_is_away_when_the_task_is_submitted(slurm_site: SlurmSite) -> None:
    slurm = slurm_site.slurm
    slurm.stop_controller()
    with pytest.raises(ProviderError, match="Slurm does not answer"):
        slurm_site.submit(shell("true"))
    assert Store(slurm_site.home / "state.db").list_tasks() == []


def test_slurmctld_goes_away_before_the_job_is_submitted(slurm_site: SlurmSite) -> None:
    slurm = slurm_site.slurm
    # What the cluster has is known from now on, for a while.
    slurm_site.submit(shell("true")).end()
    slurm.stop_controller()
    gang = slurm_site.submit(shell("echo $FLOW_ATTEMPT"))
    gang.until(lambda: gang.said("does not answer"), 60)
    assert not gang.record.final, gang.story()
    slurm.start_controller()
    slurm.wait_controller()
    gang.end()
    assert gang.words(1) == ["1", "1"]


def _reason(slurm: SlurmCluster, job: int) -> str:
    found = slurm.job(job).get("Reason", "None").partition(",")[0].replace("_", " ")
    return "" if found == "None" else found
