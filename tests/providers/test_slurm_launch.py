"""From an intent to nodes and back to none, against a Slurm on paper."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import pytest

from flowlite.connect.values import Completed
from flowlite.errors import (
    CapacityUnavailable,
    PermissionRefused,
    ProviderError,
    QuotaExceeded,
)
from flowlite.node.config.ranks import assign_ranks
from flowlite.provider import LaunchPending
from flowlite.state import clock
from provider_adapters.rented.ledger import Ledger
from provider_adapters.slurm import ending, first_contact, job_submission, nodes
from provider_adapters.slurm.queries import queue
from tests.providers.slurm_on_paper import TASK, Job, Killed, Paper, PaperSlurm


def states(paper: Paper) -> dict[str, str]:
    """What is listed of the task."""
    return {each.id: each.state for each in paper.provider.list_instances(TASK)}


# Launching


def test_one_job_for_all_nodes(slurm_paper: Paper) -> None:
    intent = slurm_paper.intend()
    with pytest.raises(LaunchPending, match="job 7 waits"):
        slurm_paper.provider.launch(intent)
    found = slurm_paper.launch(intent)
    assert [each.id for each in found] == ["7.00.00000", "7.00.00001"]
    assert [each.address for each in found] == ["10.0.0.1", "10.0.0.2"]
    assert slurm_paper.launch(intent) == found
    assert len(slurm_paper.slurm.jobs) == 1
    job = slurm_paper.slurm.job()
    assert "#SBATCH --nodes=2" in job.script
    assert job.comment.split(":")[2] == TASK


def test_ranks_are_the_numbers_of_the_nodes_in_the_job(slurm_paper: Paper) -> None:
    found = slurm_paper.launch(slurm_paper.intend(num_instances=9, slurm={"partition": "big"}))
    ranks = assign_ranks([each.id for each in reversed(found)])
    by_id = {each.id: each.data["nodeid"] for each in found}
    assert [by_id[name] for name in ranks] == list(range(9))
    assert [found[i].data["host"] for i in range(9)] == sorted(each.data["host"] for each in found)


def test_why_a_job_waits_is_said_in_words(slurm_paper: Paper) -> None:
    intent = slurm_paper.intend()
    for reason, words in (
        ("Priority", "other jobs come first"),
        ("QOSMaxGRESPerUser", "the QOS allows no more GPUs"),
    ):
        with pytest.raises(LaunchPending) as caught:
            slurm_paper.provider.launch(intent)
        slurm_paper.slurm.job().reason = reason
        with pytest.raises(LaunchPending) as caught:
            slurm_paper.provider.launch(intent)
        assert reason in str(caught.value)
        assert words in str(caught.value)


def test_a_job_that_was_queued_again_and_is_held_has_not_ended(slurm_paper: Paper) -> None:
    """As by `scontrol requeuehold state=specialexit`. It would run without its task once it is released."""
    found = slurm_paper.launch(slurm_paper.intend())
    job = slurm_paper.slurm.job()
    job.state, job.restarts, job.reason = "SPECIAL_EXIT", 1, "job requeued in held state"
    assert states(slurm_paper)[job.id] == "returning"
    again = slurm_paper.intend(f"{TASK}-launch-2")
    with pytest.raises(LaunchPending, match="it is held: `scontrol release`"):
        slurm_paper.provider.launch(again)
    job.state = "RUNNING"
    back = slurm_paper.launch(again)
    assert {each.data["job"] for each in back} == {job.id}
    assert {each.id for each in back}.isdisjoint(each.id for each in found)


def test_a_job_that_a_node_could_not_start_is_released(slurm_paper: Paper) -> None:
    """Its prolog failed, for example. Slurm drains the node, queues the job again, and holds it."""
    intent = slurm_paper.intend()
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(intent)
    job = slurm_paper.slurm.job()
    released = ["scontrol", "release", job.id]
    for restarts in range(1, 6):
        job.restarts, job.reason = restarts, "launch failed requeued held"
        for _ in range(3):
            with pytest.raises(LaunchPending):
                slurm_paper.provider.launch(intent)
    # It may be the job that cannot be started.
    assert slurm_paper.slurm.calls.count(released) == 3
    assert len(slurm_paper.launch(intent)) == 2


@pytest.mark.parametrize("comment", ["(null)", f"flowlite:0123456789abcdef:{TASK}:another"])
def test_a_job_with_the_number_of_one_of_ours_is_not_touched(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch, comment: str
) -> None:
    """A cluster that is made anew under its old name counts its jobs from the beginning."""
    monkeypatch.setattr(queue, "_MISSED_EVERY", 0.0)
    found = slurm_paper.launch(slurm_paper.intend())
    slurm = slurm_paper.slurm
    mine = slurm.job()
    theirs = Job(mine.id, comment, 1, "", "RUNNING", name="wrap")
    slurm.jobs, slurm.accounts = [theirs], False
    slurm_paper.provider.terminate(found)
    for _ in range(6):
        states(slurm_paper)
    assert states(slurm_paper) == {each.id: "ended" for each in found}
    slurm_paper.provider.terminate(found)
    assert theirs.state == "RUNNING"


def test_launches_that_ended_long_ago_are_forgotten_without_flow_gc(slurm_paper: Paper) -> None:
    slurm_paper.provider.terminate(slurm_paper.launch(slurm_paper.intend()))
    states(slurm_paper)
    ledger = Ledger(slurm_paper.home / "slurm" / "launches")
    (old,) = ledger.launches()
    assert old.ended
    ledger._write(replace(old, at=clock.now() - 31 * 86400.0))
    slurm_paper.launch(slurm_paper.intend("t2-launch-1", "t2"))
    # Once a day is enough.
    assert len(ledger.launches()) == 2
    yesterday = clock.wall() - 2 * 86400.0
    os.utime(slurm_paper.home / "slurm" / "tidied", (yesterday, yesterday))
    slurm_paper.launch(slurm_paper.intend("t3-launch-1", "t3"))
    assert [each.task for each in ledger.launches()] == ["t2", "t3"]


class TwoClusters(PaperSlurm):
    """Two clusters that one login node serves, and that number their jobs alike."""

    def run(self, argv: Sequence[str], **how: Any) -> Completed:
        named = [word for word in argv if word.startswith("SLURM_CLUSTERS=")]
        self.jobs, self.numbers = self.there.setdefault("".join(named), ([], itertools.count(7)))
        return super().run(argv, **how)

    @cached_property
    def there(self) -> dict[str, tuple[list[Job], itertools.count[int]]]:
        return {}


def test_a_job_of_the_same_number_at_another_cluster_goes_on(slurm_paper: Paper) -> None:
    slurm_paper.slurm = slurm = TwoClusters()
    slurm_paper.configure()
    (one, *_) = slurm_paper.launch(slurm_paper.intend())
    mine = slurm.job()
    slurm_paper.configure(cluster="beta")
    found = slurm_paper.launch(slurm_paper.intend("tother-launch-1", "tother"))
    assert (slurm.job().id, found[0].data["job"]) == (mine.id, one.data["job"])
    assert slurm.job() is not mine
    slurm_paper.provider.terminate(found)
    assert slurm.job().state == "COMPLETED"
    assert mine.state == "RUNNING"
    assert states(slurm_paper)[one.id] == "running"


def test_a_job_that_is_queued_again_after_its_task_has_ended_is_found(slurm_paper: Paper) -> None:
    """As by an administrator (`scontrol requeue`). Nobody but `flow gc` would end it before its lease is over."""
    found = slurm_paper.launch(slurm_paper.intend())
    slurm_paper.provider.terminate(found)
    states(slurm_paper)
    assert slurm_paper.make().list_instances() == []
    job = slurm_paper.slurm.job()
    job.state, job.restarts = "RUNNING", 1
    (left,) = slurm_paper.make().list_instances()
    assert (left.id, left.task_id) == (job.id, TASK)
    slurm_paper.make().terminate([left])
    assert not slurm_paper.slurm.live()


def test_a_job_that_another_launch_has_taken_over_is_not_taken_for_a_left_one(
    slurm_paper: Paper,
) -> None:
    slurm_paper.launch(slurm_paper.intend())
    job = slurm_paper.slurm.job()
    job.state, job.restarts = "PENDING", 1
    back = slurm_paper.launch(slurm_paper.intend(f"{TASK}-launch-2"))
    ledger = slurm_paper.provider._place.ledger
    ledger.end(f"{TASK}-launch-1")
    listed = [each for each in slurm_paper.make().list_instances() if each.state != "ended"]
    assert {each.id for each in listed} == {each.id for each in back}
    # After the last of its runs, it has just ended.
    ledger.end(f"{TASK}-launch-2")
    assert slurm_paper.make().list_instances() == []


def test_a_new_job_may_have_the_hosts_of_one_that_has_just_ended(slurm_paper: Paper) -> None:
    slurm_paper.launch(slurm_paper.intend())
    slurm_paper.slurm.job().state = "COMPLETING"
    again = slurm_paper.intend(f"{TASK}-launch-2")
    with pytest.raises(LaunchPending, match="not certain yet"):
        slurm_paper.provider.launch(again)
    slurm_paper.slurm.job().state = "CANCELLED"
    slurm_paper.launch(again)
    assert "--exclude" not in slurm_paper.slurm.jobs[-1].script


def test_a_job_whose_nodes_boot_has_them_already(slurm_paper: Paper) -> None:
    """They may be charged, so that the task does not look for nodes elsewhere meanwhile."""
    intent = slurm_paper.intend()
    with pytest.raises(LaunchPending) as caught:
        slurm_paper.provider.launch(intent)
    assert caught.value.queued
    slurm_paper.slurm.job().state = "CONFIGURING"
    with pytest.raises(LaunchPending, match="job 7 has its nodes, which boot") as caught:
        slurm_paper.provider.launch(intent)
    assert not caught.value.queued


def test_a_job_that_would_wait_for_ever_is_refused_and_cancelled(slurm_paper: Paper) -> None:
    intent = slurm_paper.intend()
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(intent)
    slurm_paper.slurm.job().reason = "PartitionNodeLimit"
    with pytest.raises(ProviderError, match="does not allow so many nodes"):
        slurm_paper.provider.launch(intent)
    assert not slurm_paper.slurm.live()


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (
            "Invalid account or account/partition combination specified",
            ProviderError,
            "account is 'physics'",
        ),
        ("Invalid qos specification", ProviderError, "qos is not set"),
        ("Invalid generic resource (gres) specification", ProviderError, "sinfo"),
        ("Requested node configuration is not available", ProviderError, "ask for less"),
        (
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
            QuotaExceeded,
            "QOS policy",
        ),
        ("Access/permission denied", PermissionRefused, "denied"),
    ],
)
def test_what_sbatch_refuses_is_told_with_the_setting_at_fault(
    slurm_paper: Paper, said: str, kind: type[ProviderError], words: str
) -> None:
    slurm_paper.slurm.refuse = f"sbatch: error: Batch job submission failed: {said}\n"
    with pytest.raises(kind, match="sbatch refused the job") as caught:
        slurm_paper.provider.launch(slurm_paper.intend(slurm={"account": "physics"}))
    assert words in str(caught.value)
    assert said in str(caught.value)
    assert states(slurm_paper) == {}


def test_a_job_beyond_the_limit_of_submitted_jobs_waits_for_another_to_end(
    slurm_paper: Paper,
) -> None:
    slurm = slurm_paper.slurm
    slurm.most = 1
    first = slurm_paper.launch(slurm_paper.intend())
    second = slurm_paper.intend("tsecond-launch-1", "tsecond")
    provider = slurm_paper.make()
    for _ in range(5):
        with pytest.raises(CapacityUnavailable, match=r"AssocMaxSubmitJobLimit.*when others have"):
            provider.launch(second)
    # As long as no job ends, Slurm is not asked again.
    assert sum(call[0] == "sbatch" for call in slurm.calls) == 2
    assert provider.list_instances("tsecond") == []
    slurm_paper.provider.terminate(first)
    found = slurm_paper.launch(second)
    assert {each.task_id for each in found} == {"tsecond"}
    assert len(slurm.live()) == 1


def test_what_a_site_tells_of_a_job_that_it_takes_is_shown(slurm_paper: Paper) -> None:
    """As by `slurm.log_user` of a job_submit.lua that changes the job."""
    slurm_paper.slurm.remarks = (
        "a banner\nsbatch: NOTE: no time limit given; 30 minutes set\nsbatch: lua: ok\n"
    )
    found = slurm_paper.launch(slurm_paper.intend())
    said = "sbatch says: NOTE: no time limit given; 30 minutes set; lua: ok"
    assert [each.note for each in found] == [said, ""]


def test_a_limit_that_allows_no_job_is_an_error(slurm_paper: Paper) -> None:
    slurm_paper.slurm.most = 0
    with pytest.raises(QuotaExceeded, match="AssocMaxSubmitJobLimit"):
        slurm_paper.launch(slurm_paper.intend())


def test_the_name_of_a_node_that_has_just_booted_is_waited_for(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm_paper.slurm.nameless = {"node02"}
    intent = slurm_paper.intend()
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(intent)
    slurm_paper.slurm.job().state = "RUNNING"
    with pytest.raises(LaunchPending, match="the addresses of node02 are not known"):
        slurm_paper.provider.launch(intent)
    slurm_paper.slurm.nameless = set()
    assert len(slurm_paper.launch(intent)) == 2
    assert len(slurm_paper.slurm.jobs) == 1


def test_a_job_whose_nodes_have_no_addresses_is_ended(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_contact, "CONTACT_SECONDS", -1.0)
    slurm_paper.slurm.nameless = {"node02"}
    with pytest.raises(ProviderError, match="the addresses of node02 are not known"):
        slurm_paper.launch(slurm_paper.intend())
    assert not slurm_paper.slurm.live()


def test_a_node_that_does_not_answer_is_named(slurm_paper: Paper) -> None:
    slurm_paper.silent["node02"] = "no route to host"
    with pytest.raises(AssertionError):
        slurm_paper.launch(slurm_paper.intend(), tries=4)
    with pytest.raises(LaunchPending, match=r"job 7 begins: node02: no route to host"):
        slurm_paper.provider.launch(slurm_paper.intend())


def test_what_the_step_ended_with_is_told(slurm_paper: Paper) -> None:
    intent = slurm_paper.intend()
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(intent)
    slurm_paper.slurm.job().state, slurm_paper.slurm.job().code = "FAILED", 101
    with pytest.raises(ProviderError, match=r"no Python 3.11 or newer"):
        slurm_paper.provider.launch(intent)


def test_what_the_user_asks_of_slurm_stands_in_the_script(slurm_paper: Paper) -> None:
    slurm_paper.configure(partition="main", qos="low", sbatch=["--mail-type=END"])
    slurm_paper.launch(slurm_paper.intend(slurm={"qos": "high", "exclusive": True}))
    script = slurm_paper.slurm.job().script
    assert "#SBATCH --partition=main" in script
    assert "#SBATCH --qos=high" in script
    assert "#SBATCH --exclusive" in script
    assert "#SBATCH --mail-type=END" in script
    assert "--qos=low" not in script


def test_the_job_says_which_port_is_tried_first(slurm_paper: Paper) -> None:
    found = slurm_paper.launch(slurm_paper.intend())
    settings = slurm_paper.provider.node_settings(slurm_paper.plan(), found[0])
    assert settings.master_port == 29507
    # Nodes have whole machines or their share of one: nothing is to be divided among them.
    assert settings.ports_dir is None


# The shared directory


def test_the_program_travels_in_the_script_until_the_directory_is_proved(
    slurm_paper: Paper,
) -> None:
    slurm_paper.launch(slurm_paper.intend())
    first = slurm_paper.slurm.jobs[0].script
    assert "FLOWLITE_PROGRAM" in first
    assert "--output=/dev/null" in first
    slurm_paper.launch(slurm_paper.intend("tother-launch-1", "tother"))
    second = slurm_paper.slurm.jobs[1].script
    assert "FLOWLITE_PROGRAM" not in second
    assert "--output=/users/ada/.flowlite-slurm/output/%j.txt" in second
    put = [file.target for file in slurm_paper.slurm.put_there]
    assert f"/users/ada/.flowlite-slurm/blobs/{'a' * 64}" in put


def test_a_directory_that_one_node_does_not_see_is_not_shared(slurm_paper: Paper) -> None:
    slurm_paper.blind.add("node02")
    found = slurm_paper.launch(slurm_paper.intend())
    caches = [slurm_paper.provider.node_settings(slurm_paper.plan(), each).cache for each in found]
    assert caches == ["/users/ada/.flowlite-slurm/blobs", "/tmp/flowlite-slurm-1000/blobs"]
    slurm_paper.launch(slurm_paper.intend("tother-launch-1", "tother"))
    assert "FLOWLITE_PROGRAM" in slurm_paper.slurm.jobs[1].script


def test_volumes_need_a_directory_that_is_shared(slurm_paper: Paper) -> None:
    slurm_paper.blind.add("node02")
    with pytest.raises(ProviderError, match="not the same place on node02"):
        slurm_paper.launch(slurm_paper.intend(volumes={"/data": "data"}))
    assert not slurm_paper.slurm.live()


def test_a_directory_that_is_not_shared_any_more_is_found_out(slurm_paper: Paper) -> None:
    slurm_paper.launch(slurm_paper.intend())
    intent = slurm_paper.intend("tother-launch-1", "tother")
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(intent)
    slurm_paper.slurm.jobs[1].state, slurm_paper.slurm.jobs[1].code = "FAILED", 104
    with pytest.raises(LaunchPending, match="another is submitted"):
        slurm_paper.provider.launch(intent)
    slurm_paper.launch(intent)
    assert "FLOWLITE_PROGRAM" in slurm_paper.slurm.jobs[2].script


# The end


def test_a_job_is_told_to_end_and_cancelled_if_it_does_not(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = slurm_paper.launch(slurm_paper.intend())
    assert set(states(slurm_paper).values()) == {"running"}
    slurm_paper.provider.terminate(found)
    assert slurm_paper.slurm.calls[-1] == ["scancel", "--signal=HUP", "7"]
    slurm_paper.slurm.job().state = "RUNNING"
    slurm_paper.provider.terminate(found)
    assert slurm_paper.slurm.job().state == "RUNNING"
    monkeypatch.setattr(ending, "_GENTLE_SECONDS", 0.0)
    slurm_paper.provider.terminate(found)
    assert slurm_paper.slurm.calls[-1] == ["scancel", "7"]
    assert set(states(slurm_paper).values()) == {"ended"}
    slurm_paper.provider.terminate(found)


def test_a_job_that_waits_is_listed_and_can_be_cancelled(slurm_paper: Paper) -> None:
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(slurm_paper.intend())
    assert states(slurm_paper) == {"7": "starting"}
    slurm_paper.provider.terminate(slurm_paper.provider.list_instances(TASK))
    assert slurm_paper.slurm.job().state == "CANCELLED"
    assert states(slurm_paper) == {}
    with pytest.raises(ProviderError, match="ended before"):
        slurm_paper.provider.launch(slurm_paper.intend())


@pytest.mark.parametrize(
    ("state", "words", "taken"),
    [
        ("NODE_FAIL", "Slurm has ended the job after a node failed", False),
        ("TIMEOUT", "its time limit", False),
        ("CANCELLED", "was cancelled", False),
        ("PREEMPTED", "preempted", True),
    ],
)
def test_why_a_job_ended_is_told(slurm_paper: Paper, state: str, words: str, taken: bool) -> None:
    slurm_paper.launch(slurm_paper.intend())
    slurm_paper.slurm.job().state = state
    for each in slurm_paper.provider.list_instances(TASK):
        assert each.state == "ended"
        assert words in each.why
        assert each.preempted is taken


def test_what_nobody_knows_any_more_is_found_by_its_comment(slurm_paper: Paper) -> None:
    slurm_paper.launch(slurm_paper.intend())
    for path in (slurm_paper.home / "slurm" / "launches").iterdir():
        path.unlink()
    (found,) = slurm_paper.make().list_instances()
    assert (found.task_id, found.data["job"]) == (TASK, "7")
    slurm_paper.make().terminate([found])
    assert not slurm_paper.slurm.live()


def test_jobs_of_other_homes_are_others(slurm_paper: Paper) -> None:
    slurm_paper.launch(slurm_paper.intend())
    slurm_paper.slurm.job().comment = "flowlite:ffffffffffffffff:tx:tx-launch-1-1-00"
    provider = slurm_paper.make()
    assert [each.data["home"] for each in provider.others()] == ["ffffffffffffffff"]


@pytest.mark.parametrize("moment", ["before its jobs are asked for", "after that"])
def test_a_launch_that_is_closed_elsewhere_during_a_listing_is_listed_as_it_ended(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    found = slurm_paper.launch(slurm_paper.intend())
    slurm_paper.slurm.job().state = "COMPLETED"
    place = slurm_paper.provider._place
    launches, find = place.ledger.launches, place.find

    def close_it(now: str) -> None:
        if moment == now:
            slurm_paper.make().list_instances(TASK)
            assert launches()[0].ended

    def read_launches(*words: Any, **options: Any) -> Any:
        known = launches(*words, **options)
        close_it("before its jobs are asked for")
        return known

    def find_jobs(*words: Any) -> Any:
        known = find(*words)
        close_it("after that")
        return known

    monkeypatch.setattr(place.ledger, "launches", read_launches)
    monkeypatch.setattr(place, "find", find_jobs)
    listed = [replace(each, launch="") for each in slurm_paper.provider.list_instances(TASK)]
    assert listed == slurm_paper.make().list_instances(TASK)
    assert {(each.id, each.state) for each in listed} == {(each.id, "ended") for each in found}


# Queued again


def test_a_job_that_was_queued_again_is_taken_over_by_the_next_launch(slurm_paper: Paper) -> None:
    slurm_paper.launch(slurm_paper.intend())
    job = slurm_paper.slurm.job()
    job.state, job.restarts, job.reason = "PENDING", 1, "BeginTime"
    listed = slurm_paper.provider.list_instances(TASK)
    assert {each.id: each.state for each in listed} == {
        "7": "returning",
        "7.00.00000": "ended",
        "7.00.00001": "ended",
    }
    assert all(each.preempted for each in listed if each.state == "ended")
    # Whoever gives the old nodes up does not end the job with them.
    slurm_paper.provider.terminate([each for each in listed if each.state == "ended"])
    assert job.state == "PENDING"
    again = slurm_paper.intend(f"{TASK}-launch-2")
    found = slurm_paper.launch(again)
    assert [each.id for each in found] == ["7.01.00000", "7.01.00001"]
    hurried = [call for call in slurm_paper.slurm.calls if call[:2] == ["scontrol", "update"]]
    assert len(hurried) == 1
    assert hurried[0][3].startswith("starttime=now")
    assert len(slurm_paper.slurm.jobs) == 1
    assert states(slurm_paper) == {
        "7.00.00000": "ended",
        "7.00.00001": "ended",
        "7.01.00000": "running",
        "7.01.00001": "running",
    }
    slurm_paper.provider.terminate(found)
    assert not slurm_paper.slurm.live()


def test_a_job_that_was_queued_again_because_a_node_failed_was_not_taken_away(
    slurm_paper: Paper,
) -> None:
    slurm_paper.launch(slurm_paper.intend())
    job = slurm_paper.slurm.job()
    job.state, job.restarts = "PENDING", 1
    slurm_paper.slurm.dead.add("node02")

    def said() -> list[tuple[str, bool, bool]]:
        listed = slurm_paper.provider.list_instances(TASK)
        return [(e.why, e.failed, e.preempted) for e in listed if e.state == "ended"]

    expected = [
        ("Slurm has queued the job again: node02 is down", False, False),
        ("its host node02 is down, and Slurm has queued the job again", True, False),
    ]
    assert said() == expected
    # It stays so when the node is back, whatever becomes of the job.
    slurm_paper.slurm.dead.clear()
    assert said() == expected
    job.restarts = 2
    assert said() == expected


def test_a_job_that_ended_because_a_node_failed_says_which(slurm_paper: Paper) -> None:
    slurm_paper.launch(slurm_paper.intend())
    slurm_paper.slurm.job().state = "NODE_FAIL"
    slurm_paper.slurm.dead.add("node01")
    listed = slurm_paper.provider.list_instances(TASK)
    what = "Slurm has ended the job after a node failed (NODE_FAIL)"
    assert [(e.why, e.failed) for e in listed] == [
        (f"its host node01 is down, and {what}", True),
        (f"{what}: node01 is down", False),
    ]


def test_a_job_that_comes_back_is_ended_with_its_task(slurm_paper: Paper) -> None:
    slurm_paper.launch(slurm_paper.intend())
    job = slurm_paper.slurm.job()
    job.state, job.restarts = "PENDING", 1
    slurm_paper.provider.terminate(slurm_paper.provider.list_instances(TASK))
    assert job.state == "CANCELLED"
    assert set(states(slurm_paper).values()) == {"ended"}


def test_a_job_that_is_being_ended_may_come_back_and_is_waited_for(slurm_paper: Paper) -> None:
    found = slurm_paper.launch(slurm_paper.intend())
    slurm_paper.slurm.job().state = "COMPLETING"
    assert set(states(slurm_paper).values()) == {"ending"}
    slurm_paper.provider.terminate(found)
    assert slurm_paper.slurm.job().state == "COMPLETING"
    with pytest.raises(LaunchPending, match="not certain"):
        slurm_paper.provider.launch(slurm_paper.intend(f"{TASK}-launch-2"))
    assert len(slurm_paper.slurm.jobs) == 1


# Killed, or cut off


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("tool", ["sbatch", "squeue", "scontrol", "scancel", "sacct"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_killed_around_any_command_nothing_is_doubled_and_nothing_is_left(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch, tool: str, when: str, nth: int
) -> None:
    slurm = slurm_paper.slurm
    intent = slurm_paper.intend()
    count, ends = 0, False

    def crash(name: str, moment: str) -> None:
        nonlocal count
        count += (name, moment) == (tool, when)
        if (name, moment) == (tool, when) and count == nth:
            raise Killed

    def go_on() -> None:
        nonlocal ends
        slurm_paper.provider = slurm_paper.make()
        if not ends:
            found = slurm_paper.launch(intent)
            assert len(found) == 2
            assert len(slurm.jobs) == 1
        ends = True
        slurm_paper.provider.terminate(slurm_paper.provider.list_instances(TASK))
        assert set(states(slurm_paper).values()) == {"ended"}

    slurm.crash = crash
    try:
        go_on()
    except Killed:
        monkeypatch.setattr(ending, "_GENTLE_SECONDS", 0.0)
        go_on()
    assert len(slurm.jobs) == 1
    assert not slurm.live()
    assert slurm_paper.make().list_instances() == []


def test_a_submission_whose_answer_got_lost_is_found_again(slurm_paper: Paper) -> None:
    slurm_paper.slurm.fail["sbatch"] = TimeoutError()
    intent = slurm_paper.intend()
    with pytest.raises(LaunchPending, match="not known yet"):
        slurm_paper.provider.launch(intent)
    assert states(slurm_paper) != {}
    slurm_paper.launch(intent)
    assert len(slurm_paper.slurm.jobs) == 1


@pytest.mark.parametrize(
    "answer",
    [
        TimeoutError(),
        # munged was started anew meanwhile.
        "sbatch: error: Batch job submission failed: Protocol authentication error",
        "sbatch: error: Batch job submission failed: Message receive failure",
    ],
)
def test_a_submission_whose_answer_got_lost_is_found_while_the_accounting_is_down(
    slurm_paper: Paper, answer: BaseException | str
) -> None:
    slurm = slurm_paper.slurm
    slurm.fail["sbatch"], slurm.accounting_down = answer, True
    intent = slurm_paper.intend()
    with pytest.raises(LaunchPending, match="not known yet"):
        slurm_paper.provider.launch(intent)
    found = slurm_paper.launch(intent)
    assert [each.data["job"] for each in found] == [slurm.job().id] * 2


def test_a_submission_whose_answer_got_lost_is_cancelled_while_the_accounting_is_down(
    slurm_paper: Paper,
) -> None:
    slurm = slurm_paper.slurm
    slurm.fail["sbatch"], slurm.accounting_down = TimeoutError(), True
    with pytest.raises(LaunchPending, match="not known yet"):
        slurm_paper.provider.launch(slurm_paper.intend())
    slurm_paper.provider.terminate(slurm_paper.provider.list_instances(TASK))
    assert not slurm.live()


def test_a_job_that_slurm_has_forgotten_is_gone_although_the_accounting_is_down(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = slurm_paper.launch(slurm_paper.intend())
    slurm = slurm_paper.slurm
    slurm.listed, slurm.known, slurm.accounting_down = False, False, True
    monkeypatch.setattr(queue, "_MISSED_EVERY", 0.0)
    for _ in range(5):
        # The accounting may answer soon, and say how it ended.
        assert set(states(slurm_paper).values()) == {"running"}
    monkeypatch.setattr(queue, "_SPEECHLESS_SECONDS", 0.0)
    states(slurm_paper)
    assert states(slurm_paper) == {each.id: "ended" for each in found}


@pytest.mark.parametrize(
    "printed", ["--> OK\n{};flow\n--> 3 SUs\n", "--> OK\n", "", "1 SU\n7\n3\n"]
)
def test_a_job_is_not_refused_since_a_site_prints_words_of_its_own(
    slurm_paper: Paper, printed: str
) -> None:
    """Its number is among other lines, or cannot be told from them."""
    slurm_paper.slurm.printed = printed
    found = slurm_paper.launch(slurm_paper.intend())
    assert {each.data["job"] for each in found} == {slurm_paper.slurm.job().id}


def test_a_submission_that_never_brings_a_job_is_refused(slurm_paper: Paper) -> None:
    slurm = slurm_paper.slurm
    slurm.printed, slurm.listed, slurm.accounts = "would be taken\n", False, False
    with pytest.raises(ProviderError, match="sbatch refused the job"):
        slurm_paper.launch(slurm_paper.intend())


def test_a_submission_that_shows_up_late_is_cancelled(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = slurm_paper.slurm
    slurm.fail["sbatch"], slurm.listed, slurm.accounts = TimeoutError(), False, False
    intent = slurm_paper.intend()
    for _ in range(6):
        with pytest.raises(LaunchPending):
            slurm_paper.provider.launch(intent)
    # Three looks have not found it, so it was submitted again.
    assert len(slurm.jobs) == 2
    assert slurm.jobs[0].comment == slurm.jobs[1].comment
    slurm.listed = True
    found = slurm_paper.launch(intent)
    slurm_paper.provider.list_instances(TASK)
    assert [job.id for job in slurm.live()] == [found[0].data["job"]]


def test_it_is_not_submitted_again_before_it_was_looked_for(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_submission, "_UNDERWAY_SECONDS", 60.0)
    slurm = slurm_paper.slurm
    slurm.fail["sbatch"], slurm.listed, slurm.accounts = TimeoutError(), False, False
    intent = slurm_paper.intend()
    for _ in range(6):
        with pytest.raises(LaunchPending):
            slurm_paper.provider.launch(intent)
    assert len(slurm.jobs) == 1


def test_slurm_that_does_not_answer_is_waited_for(slurm_paper: Paper) -> None:
    found = slurm_paper.launch(slurm_paper.intend())
    slurm_paper.slurm.down = True
    with pytest.raises(LaunchPending, match="does not answer"):
        slurm_paper.provider.launch(slurm_paper.intend())
    with pytest.raises(ProviderError):
        slurm_paper.provider.list_instances(TASK)
    assert slurm_paper.provider.answers_beside(found) == ""
    slurm_paper.slurm.down = False
    assert slurm_paper.provider.answers_beside(found) == "slurmctld"
    assert slurm_paper.launch(slurm_paper.intend()) == found


def test_a_job_that_slurm_has_suspended_is_known_as_such(slurm_paper: Paper) -> None:
    found = slurm_paper.launch(slurm_paper.intend())
    assert not slurm_paper.provider.is_suspended(found)
    slurm_paper.slurm.job().state = "SUSPENDED"
    assert slurm_paper.provider.is_suspended(found)
    assert slurm_paper.launch(slurm_paper.intend()) == found
    # One answer is enough for both questions: the caller waits 2 s.
    slurm_paper.slurm.calls.clear()
    assert slurm_paper.provider.answers_beside(found) == "slurmctld"
    assert slurm_paper.slurm.calls == []
    slurm_paper.slurm.down = True
    assert not slurm_paper.provider.is_suspended(found)


def test_a_slurmctld_that_only_answers_a_ping_is_no_witness_that_nodes_are_lost(
    slurm_paper: Paper,
) -> None:
    """They may be suspended, which it does not tell then."""
    found = slurm_paper.launch(slurm_paper.intend())
    slurm_paper.slurm.job().state = "SUSPENDED"
    slurm_paper.slurm.fail["squeue"] = "slurm_load_jobs error: Socket timed out on send/recv"
    assert not slurm_paper.provider.is_suspended(found)
    assert slurm_paper.provider.answers_beside(found) == ""
    # Without that question, as for a task that was cancelled, a ping is enough.
    assert slurm_paper.make().answers_beside(found) == "slurmctld"


def test_a_job_that_slurm_suspends_before_its_nodes_were_met_is_waited_for(
    slurm_paper: Paper,
) -> None:
    with pytest.raises(LaunchPending):
        slurm_paper.provider.launch(slurm_paper.intend())
    slurm_paper.slurm.job().state = "SUSPENDED"
    with pytest.raises(LaunchPending, match="job 7 is suspended by Slurm"):
        slurm_paper.provider.launch(slurm_paper.intend())


def test_an_empty_answer_is_not_the_end(
    slurm_paper: Paper, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = slurm_paper.launch(slurm_paper.intend())
    slurm_paper.slurm.listed = False
    monkeypatch.setattr(queue, "_MISSED_EVERY", 0.0)
    for _ in range(10):
        # `scontrol` still knows it, so it is there.
        assert set(states(slurm_paper).values()) == {"running"}
    slurm_paper.slurm.known = False
    slurm_paper.slurm.job().state = "COMPLETED"
    for _ in range(4):
        states(slurm_paper)
    assert states(slurm_paper) == {each.id: "ended" for each in found}


def test_no_secret_of_ours_is_in_what_slurm_sees(slurm_paper: Paper) -> None:
    slurm_paper.launch(slurm_paper.intend(environment={"TOKEN": "hidden"}))
    everything = repr(slurm_paper.slurm.calls) + slurm_paper.slurm.job().script
    assert "hidden" not in everything
    assert re.search(r"--export|TOKEN", everything) is None


def test_the_way_back_to_kept_files_is_that_of_the_job() -> None:
    frozen = {
        "directives": [
            ["partition", "long"],
            ["account", "chemistry"],
            ["gres", "gpu:2"],
            ["mem", "0"],
        ],
        "minutes": 600,
        "extra": ["-A physics", "--reservation=night", "--exclusive", "-q high"],
    }
    assert nodes.way_back(frozen) == [
        *("--account=chemistry", "--partition=long", "--time=60"),
        *("-A", "physics", "--reservation=night", "-q", "high"),
    ]
    assert nodes.way_back({"directives": [], "minutes": None, "extra": []}) == []
