"""One task with places at AWS, at Mithril, on SSH hosts and on Slurm, of which only the last one has room.

Everything is real but the control planes of the two clouds: supervisors, clients, sshd and Slurm. Supervisors and the
clients that watch them are killed on the way.
"""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest

from tests.failover.everywhere import (
    NO_AUCTION,
    PATIENCE,
    Followed,
    User,
    Watch,
    fill_zones,
    kill,
    running,
    shell,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.needs("hosts", "slurm")]

TYPE = "c7i.large"
LOOKS = re.compile(r"(^|:)(Get|Describe|get_)")
WAIT = "while [ ! -e /mnt/shared/go ]; do sleep 0.1; done"
ASKED: dict[str, Any] = {
    "name": "moving",
    "command": shell(f"echo rank $RANK at $FLOW_PROVIDER; {WAIT}"),
    "prefer": "order",
    # Of each cloud, one.
    "region": ["us-east-1", "us-central1-b"],
    "num_instances": 2,
    "processes_per_node": 1,
    "grace_seconds": 1,
    "max_run_time_hours": 1,
    "max_wait_hours": 1,
}


def hold_the_hosts(user: User) -> Followed:
    """A task on both SSH hosts, which runs until the end of the test."""
    held = {"name": "holder", "provider": "ssh", "num_instances": 2, "command": shell(WAIT)}
    user.flow("run", "--detach", user.write(**held))
    holder = user.task("holder")
    holder.until(lambda: holder.record.state == "running", "the holder to run")
    return holder


def is_at(task: Followed, provider: str) -> bool:
    """Whether a place of a provider is being asked, and is not being left yet."""
    record = task.record
    return record.provider == provider and not any("left_at" not in e for e in record.tried)


def test_a_task_gets_to_the_place_that_has_room_whoever_is_killed(user: User) -> None:
    places = user.places
    fill_zones(places, TYPE, 0)
    places.box.mithril.rules(auction_seconds=NO_AUCTION)
    holder = hold_the_hosts(user)
    asked = user.write(**ASKED, provider=["aws", "mithril", "ssh", "slurm"])

    # What a client asks of the clouds before the task is recorded changes nothing there.
    user.flow("run", "--dry-run", asked)
    calls = {action for cloud in (places.box.aws, places.box.mithril) for action, _ in cloud.calls}
    assert calls
    assert all(LOOKS.search(action) for action in calls), calls

    # A client that is killed while it asks for plans leaves nothing.
    places.box.mithril.kill_client("*")
    first = user.client("run", "--yes", asked)
    with running(first):
        assert first.wait(PATIENCE) == -signal.SIGKILL
    assert user.names() == ["holder"]

    # EC2 has no room. The bid at Mithril is not filled; nobody knows of it when the supervisor is killed.
    places.box.aws.kill_client("RunInstances")
    places.box.mithril.kill_client("create_bid", "after")
    second = user.client("run", "--yes", asked)
    with running(second):
        task = user.task("moving")
        with Watch(places, task.id) as watch:
            task.until(places.box.mithril.live_bids, "a bid")
            kill(second)
            third = task.follow()
            with running(third):
                # A process that waits for a core may come too late to see it there.
                task.until(
                    lambda: is_at(task, "ssh") or ("ssh", "queued") in task.left_for,
                    "the hosts to be asked",
                )
                kill(third)
                task.kill_supervisor()
            fourth = task.follow()
            with running(fourth):
                task.until(lambda: is_at(task, "slurm") and task.output(), "Slurm to run it")
                kill(fourth)
                task.kill_supervisor()
            fifth = task.follow()
            with running(fifth):
                task.until(task.is_led, "a supervisor")
                (places.cluster.shared / "go").touch()
                task.end()
                assert fifth.wait(PATIENCE) == 0
        assert task.output() == ["rank 0 at slurm", "rank 1 at slurm"]
        told = [("aws", "full"), ("mithril", "queued"), ("ssh", "queued")]
        assert task.left_for[:3] == told, task.story()
        assert watch.seen >= {"mithril", "slurm"}
        watch.check()
        task.check_nothing_is_left()
    holder.end()


def test_what_comes_late_or_unanswered_is_ended_before_the_next_place_is_asked(user: User) -> None:
    """A job that waits, machines of an unanswered launch that die, and a bid that is filled as it is withdrawn."""
    places, mithril = user.places, user.places.box.mithril
    for host in places.slurm.nodes:
        places.slurm.drain(host)
    places.box.aws.fault("RunInstances", status=502, code="InternalError", when="after")
    places.box.aws.boots("dies", "dies", "dies", "dies")
    mithril.rules(auction_seconds=NO_AUCTION)
    mithril.kill_client("cancel_bid")
    client = user.client(
        "run", "--yes", user.write(**ASKED, provider=["slurm", "aws", "mithril", "ssh"])
    )
    with running(client):
        task = user.task("moving")
        with Watch(places, task.id) as watch:
            task.until(lambda: places.holds(task.id), "a job")
            kill(client)
            task.kill_supervisor()
            second = task.follow()
            with running(second):
                task.until(mithril.live_bids, "a bid")
                kill(second)
                # The supervisor is killed by its first call that withdraws the bid, and nobody starts another one.
                task.until(lambda: not task.is_led(), "the supervisor to be killed")
                mithril.auction()
                task.until(lambda: len(mithril.bill()) == 2, "the bid to be filled")
            third = task.follow()
            with running(third):
                (places.cluster.shared / "go").touch()
                task.end()
                assert third.wait(PATIENCE) == 0
        assert task.output() == ["rank 0 at ssh", "rank 1 at ssh"]
        told = [("slurm", "queued"), ("aws", "refused"), ("aws", "refused"), ("mithril", "queued")]
        assert task.left_for[:4] == told, task.story()
        assert watch.seen >= {"slurm", "aws", "mithril"}
        watch.check()
        task.check_nothing_is_left()


def test_a_task_that_may_wait_no_longer_fails_with_the_reason_of_each_place(user: User) -> None:
    places = user.places
    fill_zones(places, TYPE, 0)
    places.box.mithril.rules(auction_seconds=NO_AUCTION)
    holder = hold_the_hosts(user)
    for host in places.slurm.nodes:
        places.slurm.drain(host)
    asked = {**ASKED, "max_wait_hours": "30s"}
    client = user.client(
        "run", "--yes", user.write(**asked, provider=["aws", "mithril", "ssh", "slurm"])
    )
    with running(client):
        task = user.task("moving")
        with Watch(places, task.id) as watch:
            record = task.end("failed")
            assert client.wait(PATIENCE) == 1
    reasons = (
        r"aws us-east-1 c7i\.large: EC2 has no room .*",
        r"mithril us-central1-b .*: nothing within .*",
        r"ssh lab .*: in use by others for .*",
        r"slurm .*: nothing within .*",
    )
    told = "max_wait_hours: no room within 30 s: " + "; ".join(reasons)
    assert re.fullmatch(told, record.reason), record.reason
    watch.check()
    task.check_nothing_is_left()
    (places.cluster.shared / "go").touch()
    holder.end()
